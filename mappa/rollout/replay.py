"""Replay of a recorded trajectory."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from mappa_core.errors import ReplayError
from mappa_core.records import Completion, Failure, Message, Phase, Step, ToolSpec, Verdict


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Replay:
    """Recorded steps, in order, and verdicts of a trajectory that began in an earlier process. A lost trajectory fails
    again at the same step with the same error, `lost`.

    In a counterfactual rollout the steps before `fork_position` belong to the original trajectory, and `replacement`,
    if not None, is the action at `fork_position`. Neither is ever sampled.
    """

    steps: tuple[Step, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    lost: Failure | None = None
    fork_position: int = 0
    replacement: Completion | None = None

    def step(self, position: int) -> Step | None:
        """The recorded step at `position`."""
        return next((step for step in self.steps if step.position == position), None)

    def ended_before(self, position: int) -> bool:
        """Whether nothing is recorded at `position` or after it. An earlier position may be empty: an action was
        requested there and could not be sampled."""
        return all(step.position < position for step in self.steps)

    def replacement_at(self, position: int) -> Completion | None:
        """The action that replaces sampling at `position`, or None."""
        return self.replacement if position == self.fork_position else None

    def is_sampled(self, position: int) -> bool:
        """Whether the action at `position` belongs to this trajectory and was, or will be, sampled."""
        return position >= self.fork_position and self.replacement_at(position) is None

    def verdicts_on(self, step: Step, phase: Phase) -> tuple[Verdict, ...]:
        """The verdicts of `phase` on `step`, oldest first."""
        return tuple(verdict for verdict in self.verdicts if verdict.step == step.id and verdict.phase == phase)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionRequest:
    """Request of a workflow for an action of `agent`."""

    agent: str
    messages: tuple[Message, ...]
    tools: tuple[str, ...]
    own_tools: tuple[ToolSpec, ...]
    stop: tuple[str, ...] = ()


def check_same_request(step: Step, request: ActionRequest) -> None:
    """Raise ReplayError if a workflow requests something else than when `step` was recorded."""
    for name in (field.name for field in fields(request)):
        if getattr(request, name) != getattr(step, name):
            raise ReplayError(
                f"step {step.id}: the workflow now gives other {name} than when it was recorded. A workflow must "
                "take time, randomness and ids from the stage, so that it can be replayed."
            )


def check_same_sample(step: Step, again: Completion) -> None:
    """Raise ReplayError if resampling a recorded step gave other tokens or log-probabilities."""
    recorded = step.completion
    same_tokens = np.array_equal(_array(recorded.tokens), _array(again.tokens))
    # Bit for bit, without a tolerance: a difference in the last bit may be another token a few steps later.
    same_logprobs = np.array_equal(_array(recorded.logprobs), _array(again.logprobs))
    if not same_tokens or not same_logprobs:
        raise ReplayError(
            f"step {step.id}: sampling it again gave other tokens or log-probabilities than recorded, although the "
            "engine is deterministic. The weights, the library versions or the machine differ from the recorded run: "
            "resume with what it was recorded with (run.db lists the versions), or start a new run."
        )


def _array(values: np.ndarray | None) -> np.ndarray:
    return np.zeros(0) if values is None else values
