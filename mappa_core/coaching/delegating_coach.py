"""Base of coaches that judge with the help of other coaches."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from mappa_core.protocols import Bench, Cassette, Coach, DriftReport, Provider
from mappa_core.records import Trajectory


class DelegatingCoach(Coach):
    """Base of coaches that wrap others: forwards to `coaches` all calls but `score`, which subclasses implement, and
    `review`, if one call judges several actions. The states of `coaches` are stored under their names."""

    def __init__(self, coaches: Mapping[str, Coach]) -> None:
        self._coaches = dict(coaches)

    @property
    def by_trajectory(self) -> bool:
        return any(coach.by_trajectory for coach in self._coaches.values())

    @property
    def providers(self) -> tuple[Provider, ...]:
        return tuple(dict.fromkeys(provider for coach in self._coaches.values() for provider in coach.providers))

    @property
    def fitted_on(self) -> Collection[str]:
        return frozenset().union(*(coach.fitted_on for coach in self._coaches.values()))

    def use_cassette(self, cassette: Cassette) -> None:
        for coach in self._coaches.values():
            coach.use_cassette(cassette)

    def open_batches(self, folder: Path) -> None:
        for coach in self._coaches.values():
            coach.open_batches(folder)

    def set_bench(self, bench: Bench) -> None:
        for coach in self._coaches.values():
            coach.set_bench(bench)

    def learn(self, trajectories: Sequence[Trajectory]) -> DriftReport:
        return DriftReport.merge([coach.learn(trajectories) for coach in self._coaches.values()])

    def state_dict(self) -> dict[str, Any]:
        return {name: coach.state_dict() for name, coach in self._coaches.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, coach in self._coaches.items():
            coach.load_state_dict(state[name])

    async def close(self) -> None:
        # All are closed, also after one that raises; its error is raised at the end.
        async with AsyncExitStack() as stack:
            for coach in self._coaches.values():
                stack.push_async_callback(coach.close)
