"""A trajectory played again on what was recorded of it."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from mappa_core.errors import ReplayError
from mappa_core.records import Completion, Failure, Message, Phase, Step, ToolSpec, Verdict


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
        """The recorded step at `position`, None where there is none."""
        return next((step for step in self.steps if step.position == position), None)

    def ended_before(self, position: int) -> bool:
        """Whether the record holds nothing at `position` and after it. A position in between may be empty: an action
        was asked for there, and could not be sampled."""
        return all(step.position < position for step in self.steps)

    def put(self, position: int) -> Completion | None:
        """The action at `position` that stands in for one that would be sampled."""
        return self.instead if position == self.given else None

    def sampled(self, position: int) -> bool:
        """Whether the action at `position` is this trajectory's own and was, or will be, sampled."""
        return position >= self.given and self.put(position) is None

    def on(self, step: Step, phase: Phase) -> tuple[Verdict, ...]:
        """The verdicts of `phase` on `step`, oldest first."""
        return tuple(verdict for verdict in self.verdicts if verdict.step == step.id and verdict.phase == phase)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a workflow asks for: an action of `agent`."""

    agent: str
    messages: tuple[Message, ...]
    tools: tuple[str, ...]
    own_tools: tuple[ToolSpec, ...]


def check_same_request(step: Step, asked: Asked) -> None:
    """Raise ReplayError where a workflow asks for something else than it did when `step` was recorded."""
    for name in (field.name for field in fields(asked)):
        if getattr(asked, name) != getattr(step, name):
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
