"""The workflow `desk` and its tasks: two agents answer a letter, each with one of the lines that its prompt offers."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from mappa_core import Message, NoOptions, Role, Stage, Task, Workflow
from mappa_gepa.drawn_tasks import DrawnTasks

RIGHT: Mapping[str, str] = {"greeter": "hello", "solver": "refund"}
"""What each agent should say, whatever the letter."""
LINES: Mapping[str, tuple[str, ...]] = {
    "greeter": ("hello", "sorry"),
    "solver": ("later", "wait", "refund"),
}
"""What each agent's prompt offers it to say."""
WORDS = ("lamp", "chair", "clock", "kettle", "mirror", "basket", "carpet", "mug", "radio", "shelf", "stool", "vase")
FAULTS = ("is late", "is broken", "is too big", "is the wrong one", "has no key", "does not work")


class DeskTasks(DrawnTasks):
    """Letters of customers."""

    def _draw(self, name: str, random: Random) -> Task:
        return Task(id=name, prompt=f"The {random.choice(WORDS)} {random.choice(FAULTS)}.")


class Desk(Workflow):
    """greeter -> solver, one action each. `correct` is the share of the agents that say what they should."""

    agents: Mapping[str, Role] = {
        "greeter": Role(brief="Greets the customer with a line of its prompt."),
        "solver": Role(brief="Says what the customer should do, with a line of its prompt."),
    }
    prompts: Mapping[str, str] = {
        agent: "Answer with one of these.\n\n" + "\n".join(f"- {line}" for line in lines)
        for agent, lines in LINES.items()
    }

    def __init__(self, options: NoOptions | None = None) -> None:
        pass

    @property
    def max_turns(self) -> Mapping[str, int]:
        """One action per agent."""
        return dict.fromkeys(self.agents, 1)

    async def run(self, stage: Stage) -> None:
        said = {}
        for agent, prompt in self.prompts.items():
            step = await stage.act(agent, [Message(role="user", content=f"{stage.task.prompt}\n\n{prompt}")])
            said[agent] = step.reply.content.strip()
        stage.record(correct=sum(said[agent] == RIGHT[agent] for agent in said) / len(said))


def offered_lines(prompt: str) -> tuple[str, ...]:
    """The lines that a prompt offers."""
    return tuple(line.removeprefix("- ") for line in prompt.splitlines() if line.startswith("- "))
