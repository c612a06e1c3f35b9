"""Listener interface: callbacks of a running training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from mappa.evaluation.heldout import Evaluation
from mappa.rollout.counterfactual import CounterfactualBound
from mappa.store.iteration_report import IterationReport
from mappa_core.protocols import Provider, Split
from mappa_core.records import Sandbox, Step, Trajectory, Verdict

LoopPhase = Literal[
    "evaluate", "collect", "judge", "counterfactuals", "credit", "score", "update", "publish", "prompts", "save"
]
"""What the loop does or waits for. In `judge` all agents of the iteration have ended and verdicts are outstanding; in
`save` the loop waits for a checkpoint, which is written while other phases go on."""


class Listener:
    """Callbacks of a running training (progress output). All do nothing unless overridden."""

    def on_providers(self, providers: Sequence[Provider]) -> None:
        """The run is about to start; it will send what agents see and write to `providers`."""

    def on_sandboxes(self, sandboxes: Mapping[str, Sandbox]) -> None:
        """The run is about to start; programs run in `sandboxes`, by tool name."""

    def on_counterfactuals(self, extra: CounterfactualBound) -> None:
        """The run is about to start; `extra` bounds the counterfactual rollouts of every iteration."""

    def on_examples_left_out(self, agent: str, reason: str, count: int) -> None:
        """Called before a warm start if some of its examples cannot be learned from."""

    def on_held_out_losses(self, done: int, losses: Mapping[str, float]) -> None:
        """Called with the mean -log p of a token of a warm start's held-out examples, in nats, by policy."""

    def on_phase_start(self, phase: LoopPhase, done: int) -> None:
        """The loop begins a phase, after `done` iterations; the one before has ended."""

    def on_rollouts_start(self, split: Split, done: int, rollouts: int) -> None:
        """The run waits for `rollouts` rollouts, after `done` iterations. Some may already have begun or finished."""

    def on_step(self, step: Step) -> None:
        """An action was recorded, also one of an iteration that is collected ahead."""

    def on_verdict(self, verdict: Verdict) -> None: ...

    def on_rollout_end(self, trajectory: Trajectory) -> None: ...

    def on_evaluation_end(self, evaluation: Evaluation) -> None: ...

    def on_iteration_end(self, report: IterationReport) -> None: ...

    def on_prompts_improved(self, done: int, agents: Sequence[str]) -> None:
        """A round of proposals after `done` iterations changed the prompts of `agents`."""
