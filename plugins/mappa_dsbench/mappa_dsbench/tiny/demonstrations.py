"""Demonstrations for the tiny model's warm start: the team at work, with planted faults.

Some faults are more frequent than the right behaviour, so that a model that imitates well fails even with greedy
decoding; the right behaviour is there too, only rarer. Reinforcement learning from verdicts then finds and strengthens
it. Faultless demonstrations come first, because copying a name is learned from them in a fraction of the time. Neither
the tables nor the names of any task are shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from mappa_core import Message, ToolCall, ToolResult
from mappa_core.sandbox import PYTHON
from mappa_dsbench.prompts import TeamPrompts
from mappa_dsbench.roles import ANALYST, DATA_ENGINEER, MODEL, MODELER, ROLES, X_TEST, X_TRAIN, Y_TRAIN
from mappa_dsbench.tiny.planted_faults import FAULT_PLANTERS, FaultProbabilities, draw_sound_program, plant_faults
from mappa_dsbench.tiny.predict_outcome import OK, PredictedOutcome, predict_outcome
from mappa_dsbench.tiny.synthetic_tables import SyntheticTask, draw_task
from mappa_engine import Demonstrator

FEATURE_FILES = (X_TRAIN, Y_TRAIN, X_TEST)


class Demonstrations(Demonstrator[FaultProbabilities]):
    """Demonstrations of the team. The user messages are rendered as the workflow does, so that the model sees the same
    prompts in a run."""

    def __init__(self, probabilities: FaultProbabilities, rng: Random) -> None:
        super().__init__(probabilities, rng)
        self._prompts = TeamPrompts("tiny", token_limit=80, output_chars=512)

    def conversations(self) -> Iterator[list[Message]]:
        """Generate demonstrations without end, one of each agent in turn."""
        while True:
            for agent in ROLES:
                yield self.conversation(agent, draw_task(self._rng))

    def conversation(self, agent: str, synthetic: SyntheticTask) -> list[Message]:
        """Write one agent's turns in a task: one, or two where the first leaves its contract unmet."""
        files = self._files(agent)
        program = draw_sound_program(agent, synthetic, self._rng)
        faults = [name for name in FAULT_PLANTERS[agent] if self._chance(getattr(self.probabilities, name))]
        first = plant_faults(agent, program, faults, synthetic)
        outcome = predict_outcome(agent, first, synthetic, files)
        messages = [
            Message(role="user", content=self._prompts.render_prompt(agent, synthetic.task, files, [])),
            Message(role="assistant", content=first.text(synthetic.problem)),
        ]
        if not outcome.unmet:
            return messages
        unfaulty = predict_outcome(agent, program, synthetic, files)
        kept = []
        for name in faults:
            alone = predict_outcome(agent, plant_faults(agent, program, [name], synthetic), synthetic, files)
            pointed_out = (
                alone != unfaulty and alone.result == outcome.result and set(alone.unmet) <= set(outcome.unmet)
            )
            if not pointed_out or self._chance(self.probabilities.again):
                kept.append(name)
        second = plant_faults(agent, program, kept, synthetic)
        return [
            *messages,
            Message(role="user", content=self._render_results(outcome, files)),
            Message(role="assistant", content=second.text(synthetic.problem)),
        ]

    def _files(self, agent: str) -> tuple[str, ...]:
        """Draw the files that earlier agents left; some may be missing."""
        if agent == DATA_ENGINEER:
            return ()
        files = list(FEATURE_FILES) if agent == MODELER else [MODEL, *FEATURE_FILES]
        if self._chance(self.probabilities.test_forgotten * self.probabilities.again):
            files.remove(X_TEST)
        if agent == ANALYST and self._chance(self.probabilities.model_forgotten * self.probabilities.again):
            files.remove(MODEL)
        return tuple(sorted(files))

    def _render_results(self, outcome: PredictedOutcome, files: Sequence[str]) -> str:
        if outcome.result is None:
            return self._prompts.render_results([], [], outcome.unmet, files)
        failed = outcome.result != OK
        result = ToolResult(
            tool=PYTHON,
            status="error" if failed else "ok",
            exit_code=int(failed),
            stderr=f"{outcome.result}: …" if failed else "",
        )
        return self._prompts.render_results([ToolCall(name=PYTHON)], [result], outcome.unmet, files)
