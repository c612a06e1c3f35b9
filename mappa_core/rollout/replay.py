"""A trajectory played again on what was recorded of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mappa_core.errors import ReplayError
from mappa_core.records import Completion, Failure, Message, Phase, Step, Verdict


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Replay:
    """What the store holds of a trajectory that was begun before: its steps in order and their verdicts. One that was
    `lost` ends again where it ended, and so.

    In a counterfactual rollout the steps before position `given` are another trajectory's, and `instead`, if it is not
    None, is the action there. Neither is ever sampled.
    """

    steps: tuple[Step, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    lost: Failure | None = None
    given: int = 0
    instead: Completion | None = None

    def step(self, position: int) -> Step | None:
        """The recorded step at `position`, or None where the record ends."""
        return self.steps[position] if position < len(self.steps) else None

    def put(self, position: int) -> Completion | None:
        """The action at `position` that stands in for one that would be sampled."""
        return self.instead if position == self.given else None

    def sampled(self, position: int) -> bool:
        """Whether the action at `position` is this trajectory's own and was, or will be, sampled."""
        return position >= self.given and self.put(position) is None

    def on(self, step: Step, phase: Phase) -> tuple[Verdict, ...]:
        """The verdicts of `phase` on `step`, oldest first."""
        return tuple(verdict for verdict in self.verdicts if verdict.step == step.id and verdict.phase == phase)


def check_same_request(step: Step, agent: str, messages: Sequence[Message], tools: Sequence[str]) -> None:
    """Raise ReplayError where a workflow asks for something else than it did when `step` was recorded."""
    asked = {"agent": agent, "messages": tuple(messages), "tools": tuple(tools)}
    recorded = {"agent": step.agent, "messages": step.messages, "tools": step.tools}
    for name, value in asked.items():
        if value != recorded[name]:
            raise ReplayError(
                f"step {step.id}: the workflow now gives other {name} than when it was recorded. A workflow must "
                "take time, randomness and ids from the stage, so that it can be replayed."
            )


def check_same_sample(step: Step, again: Completion) -> None:
    """Raise ReplayError where sampling a recorded step again did not give the recorded tokens."""
    recorded = step.completion
    same_tokens = np.array_equal(_array(recorded.tokens), _array(again.tokens))
    if not same_tokens or not np.array_equal(_array(recorded.logprobs), _array(again.logprobs)):
        raise ReplayError(
            f"step {step.id}: sampling it again gave other tokens or log-probabilities than recorded, although the "
            "engine is deterministic. The weights, the library versions or the machine differ from the recorded run."
        )


def _array(values: np.ndarray | None) -> np.ndarray:
    return np.zeros(0) if values is None else values
