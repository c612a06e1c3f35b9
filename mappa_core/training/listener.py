"""Who hears of a run while it goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from mappa_core.evaluation.heldout import Evaluation
from mappa_core.protocols import Provider, Split
from mappa_core.records import Sandbox, Trajectory
from mappa_core.rollout.counterfactual import Extra
from mappa_core.training.report import IterationReport


class Listener(Protocol):
    """Hears of a run while it goes on (progress lines)."""

    def asking(self, providers: Sequence[Provider]) -> None:
        """The run is about to start; what agents see and write will be sent to `providers`."""
        ...

    def sandboxed(self, sandboxes: Mapping[str, Sandbox]) -> None:
        """The run is about to start; programs run in `sandboxes`, by the name of the tool that runs them."""
        ...

    def adding(self, extra: Extra) -> None:
        """The run is about to start; every iteration plays `extra` counterfactual rollouts."""
        ...

    def collecting(self, split: Split, done: int, rollouts: int) -> None:
        """So many rollouts are waited for, after `done` iterations. Some may have begun, or be finished, already."""
        ...

    def rollout_finished(self, trajectory: Trajectory) -> None: ...

    def evaluated(self, evaluation: Evaluation) -> None: ...

    def iteration_finished(self, report: IterationReport) -> None: ...


class Silent:
    """A listener that says nothing."""

    def asking(self, providers: Sequence[Provider]) -> None:
        pass

    def sandboxed(self, sandboxes: Mapping[str, Sandbox]) -> None:
        pass

    def adding(self, extra: Extra) -> None:
        pass

    def collecting(self, split: Split, done: int, rollouts: int) -> None:
        pass

    def rollout_finished(self, trajectory: Trajectory) -> None:
        pass

    def evaluated(self, evaluation: Evaluation) -> None:
        pass

    def iteration_finished(self, report: IterationReport) -> None:
        pass
