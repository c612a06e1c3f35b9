"""A team of two small models that no package holds: their prompts decide what they can say, and their weights what they
do say. Two agents answer a letter, each with one of the lines that its prompt offers.

`load_plugins(modules={"desk": desk_offers})` adds it to a registry, with its recipe `desk/tiny`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from random import Random

from mappa_core import (
    MAX_SCORE,
    NOBODY,
    Coach,
    Message,
    NoOptions,
    Offer,
    Role,
    Scene,
    Stage,
    Task,
    TaskSource,
    Verdict,
    Workflow,
    hookimpl,
)
from mappa_core.transport import Reply, Request, Transport
from mappa_gepa.drawn_tasks import DrawnTasks, DrawnTasksOptions
from mappa_gepa.relay.models import HOST, build_reply, read_fenced

RIGHT: Mapping[str, str] = {"greeter": "hello", "solver": "refund"}
"""What each agent should say, whatever the letter."""
LINES: Mapping[str, tuple[str, ...]] = {
    "greeter": ("hello", "sorry"),
    "solver": ("later", "wait", "refund"),
}
"""What each agent's prompt offers it to say."""
WORDS = ("lamp", "chair", "clock", "kettle", "mirror", "basket", "carpet", "mug", "radio", "shelf", "stool", "vase")
FAULTS = ("is late", "is broken", "is too big", "is the wrong one", "has no key", "does not work")
WRONG_POINTS = 0.0
_LACKING = re.compile(r"Its prompt lacks the line “(.*?)”")


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


class DeskCoach(Coach):
    """Judges every action on its own, by rule."""

    async def score(self, scene: Scene) -> Verdict:
        """Judge by rule; the reason names the line that the prompt does not offer, if that is why."""
        agent, said = scene.step.agent, scene.step.reply.content.strip()
        right, prompt = RIGHT[agent], scene.step.messages[-1].content
        if said == right:
            return Verdict.scored(MAX_SCORE, "That is what it should say.", blame=NOBODY)
        if right not in _offered_lines(prompt):
            return Verdict.scored(WRONG_POINTS, f"Its prompt lacks the line “{right}”", blame=agent)
        reason = f"It said “{said}” and should say “{right}”"
        return Verdict.scored(WRONG_POINTS, reason, blame=agent, correction=right)


class LineEditor:
    """A provider without a model: it answers a request for a better prompt of the team by adding the line that feedback
    misses most. Where feedback misses no line, the prompt stays."""

    model = "line-editor"
    host = HOST

    def __init__(self, options: NoOptions | None = None) -> None:
        pass

    async def complete(self, request: Request) -> Reply:
        """Edit the first text of the request by the others."""
        prompt, *feedback = read_fenced(request)
        lacking = Counter(line for text in feedback for line in _LACKING.findall(text))
        added = "".join(f"\n- {line}" for line, _ in lacking.most_common(1))
        return build_reply(f"``````\n{prompt}{added}\n``````", self.model, request)

    async def count(self, messages: Sequence[Message]) -> int | None:
        """Return None: it has no tokens."""
        return None

    async def close(self) -> None:
        """Release nothing."""


def _offered_lines(prompt: str) -> tuple[str, ...]:
    return tuple(line.removeprefix("- ") for line in prompt.splitlines() if line.startswith("- "))


@hookimpl
def mappa_recipes() -> Mapping[str, Path]:
    return {"tiny": Path(__file__).with_name("desk.yaml")}


@hookimpl
def mappa_tasks() -> Iterable[Offer[TaskSource]]:
    yield Offer("desk", DeskTasks, DrawnTasksOptions)


@hookimpl
def mappa_workflows() -> Iterable[Offer[Workflow]]:
    yield Offer("desk", Desk)


@hookimpl
def mappa_coaches() -> Iterable[Offer[Coach]]:
    yield Offer("desk-lines", lambda options: DeskCoach(), NoOptions)


@hookimpl
def mappa_transports() -> Iterable[Offer[Transport]]:
    yield Offer("line-editor", LineEditor)
