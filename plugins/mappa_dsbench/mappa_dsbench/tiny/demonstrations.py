"""What the small model is shown before it learns from verdicts: the team at work, with bad habits.

The habits are planted. Some are the rule and not the exception, so that a model that imitates well fails even when it
decodes greedily; the right behaviour is there too, only rarer. What reinforcement learning from verdicts then does is
find and strengthen it. Faultless demonstrations come first, because copying a name is learned from them in a fraction
of the time. Neither the tables nor the names of any task are shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from mappa_core import PYTHON, Message, ToolCall, ToolResult
from mappa_dsbench.briefing import Briefing
from mappa_dsbench.roles import ANALYST, DATA_ENGINEER, MODEL, MODELER, ROLES, X_TEST, X_TRAIN, Y_TRAIN
from mappa_dsbench.tiny.drawing import Drawn, draw
from mappa_dsbench.tiny.foresight import OK, Outcome, foresee
from mappa_dsbench.tiny.habits import FAULTS, Habits, planted, sound

MADE = (X_TRAIN, Y_TRAIN, X_TEST)


class Demonstrator:
    """Writes conversations (user, assistant, user, assistant) in which every assistant message is to be learned.

    The user messages are those that the workflow writes when it runs, so that what was learned is what is met again.
    """

    def __init__(self, habits: Habits, rng: Random) -> None:
        self.habits = habits
        self._rng = rng
        self._briefing = Briefing("tiny", token_limit=80, output_chars=512)

    def conversations(self) -> Iterator[list[Message]]:
        """Demonstrations without end, one of each agent in turn."""
        while True:
            for agent in ROLES:
                yield self.conversation(agent, draw(self._rng))

    def conversation(self, agent: str, drawn: Drawn) -> list[Message]:
        """One agent's part in a task: one turn, or two where the first left something undone."""
        files = self._files(agent)
        program = sound(agent, drawn, self._rng)
        faults = [name for name in FAULTS[agent] if self._chance(getattr(self.habits, name))]
        first = planted(agent, program, faults, drawn)
        outcome = foresee(agent, first, drawn, files)
        said = [
            Message(role="user", content=self._briefing.opening(agent, drawn.task, files, [])),
            Message(role="assistant", content=first.text(drawn.problem)),
        ]
        if not outcome.unmet:
            return said
        unfaulty = foresee(agent, program, drawn, files)
        kept = []
        for name in faults:
            alone = foresee(agent, planted(agent, program, [name], drawn), drawn, files)
            told = alone != unfaulty and alone.result == outcome.result and set(alone.unmet) <= set(outcome.unmet)
            if not told or self._chance(self.habits.again):
                kept.append(name)
        second = planted(agent, program, kept, drawn)
        return [
            *said,
            Message(role="user", content=self._told(outcome, files)),
            Message(role="assistant", content=second.text(drawn.problem)),
        ]

    def _chance(self, probability: float) -> bool:
        return self._rng.random() < probability

    def _files(self, agent: str) -> tuple[str, ...]:
        """What those before have left, which is not always all."""
        if agent == DATA_ENGINEER:
            return ()
        files = list(MADE) if agent == MODELER else [MODEL, *MADE]
        if self._chance(self.habits.test_forgotten * self.habits.again):
            files.remove(X_TEST)
        if agent == ANALYST and self._chance(self.habits.model_forgotten * self.habits.again):
            files.remove(MODEL)
        return tuple(sorted(files))

    def _told(self, outcome: Outcome, files: Sequence[str]) -> str:
        if outcome.result is None:
            return self._briefing.results([], [], outcome.unmet, files)
        failed = outcome.result != OK
        result = ToolResult(
            tool=PYTHON,
            status="error" if failed else "ok",
            exit_code=int(failed),
            stderr=f"{outcome.result}: …" if failed else "",
        )
        return self._briefing.results([ToolCall(name=PYTHON)], [result], outcome.unmet, files)
