"""The workflow `relay` and its tasks: a list of words goes through three hands, and the last result is graded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from mappa_core import ConfigError, Message, Role, Stage, Step, Task, TaskError, Workflow
from mappa_gepa.drawn_tasks import DrawnTasks
from mappa_gepa.relay.instructions import WORDS_MARK, follow

DUTIES: Mapping[str, tuple[str, ...]] = {
    "cleaner": ("Leave out words of fewer than four letters.", "Leave out every word that came before."),
    "sorter": ("Sort the words by the alphabet.", "Leave out all but the first four words."),
    "writer": ("Write every word in capitals.", "Put a hyphen between the words."),
}
"""What each agent is to do, in the order in which they act."""
VOCABULARY = tuple(
    """
    ant ash bay bee elm fig fox hen ivy oak owl yew acorn amber birch cedar clover coral daisy ember fern finch flint
    garnet hazel heron holly iris jade juniper laurel lily linden lynx maple moss myrtle opal otter pearl plum poppy
    quartz raven robin sage sorrel spruce swan thistle violet willow wren
    """.split()  # noqa: SIM905 - a list would fill a screen
)
WORDS_PER_TASK = 8


class RelayTasks(DrawnTasks):
    """Lists of words, of which one occurs twice."""

    def _draw(self, name: str, random: Random) -> Task:
        words = random.sample(VOCABULARY, WORDS_PER_TASK - 1)
        words.insert(random.randrange(1, WORDS_PER_TASK), words[0])
        reference = words
        for duties in DUTIES.values():
            reference = follow(duties, reference)
        return Task(id=name, prompt=" ".join(words), reference=" ".join(reference))


@dataclass
class RelayOptions:
    loss: float = 0.0
    """Chance that what one agent hands to the next loses its last word, by task: a defect of no agent."""

    def check(self) -> None:
        """Raise ConfigError if `loss` is no probability."""
        if not 0.0 <= self.loss <= 1.0:
            raise ConfigError(f"loss: must be from 0 to 1, not {self.loss:g}")


class Relay(Workflow):
    """cleaner -> sorter -> writer, one action each."""

    agents: Mapping[str, Role] = {agent: Role(brief=" ".join(duties)) for agent, duties in DUTIES.items()}
    prompts: Mapping[str, str] = {
        agent: f"You are one of three who work on a list of words, the {agent}.\n\n" + "\n".join(duties)
        for agent, duties in DUTIES.items()
    }

    def __init__(self, options: RelayOptions | None = None) -> None:
        self._loss = RelayOptions().loss if options is None else options.loss

    @property
    def max_turns(self) -> Mapping[str, int]:
        """One action per agent."""
        return dict.fromkeys(self.agents, 1)

    async def run(self, stage: Stage) -> None:
        words = stage.task.prompt
        for agent in self.agents:
            content = f"{self.prompts[agent]}\n\n{WORDS_MARK} {words}"
            step = await stage.act(agent, [Message(role="user", content=content)])
            words = self._hand_on(stage.task, agent, step.reply.content)
        stage.record(correct=await stage.grade(words))

    def _hand_on(self, task: Task, agent: str, words: str) -> str:
        is_last = agent == list(self.agents)[-1]
        if is_last or Random(f"{task.id}/{agent}").random() >= self._loss:
            return words
        return " ".join(words.split()[:-1])

    async def grade(self, text: str, task: Task) -> float:
        """Return 1 where `text` is the reference, else 0."""
        if task.reference is None:
            raise TaskError(f"task {task.id} has no reference to grade against")
        return float(text == task.reference)

    def answer(self, steps: Sequence[Step]) -> str:
        """Return what the last agent wrote."""
        return steps[-1].reply.content
