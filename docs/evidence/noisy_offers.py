"""A coach that is wrong on some actions, offered as a plugin that no package holds.

`load(modules={"noisy": noisy_offers})` adds it to a registry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from failing_offers import draw

from mappa_core import Coach, ConfigError, DelegatingCoach, Offer, Scene, Use, Verdict, hookimpl

MAX_POINTS = 10.0


@dataclass
class NoisyOptions:
    """Of the offer `noisy`."""

    coach: Use = field(default_factory=Use)
    """Who judges."""
    share: float = 0.0
    """Of actions whose points are turned round, drawn by the step's id and `seed`."""
    seed: int = 0


class Noisy(DelegatingCoach):
    """Judges as `coach` does, but gives 10 - p in place of p points to the share of actions that it is wrong on."""

    def __init__(self, coach: Coach, options: NoisyOptions) -> None:
        if not 0 <= options.share <= 1:
            raise ConfigError(f"coach.options.share is {options.share:g}; it must lie between 0 and 1")
        super().__init__({"coach": coach})
        self._coach, self._options = coach, options

    async def score(self, scene: Scene) -> Verdict:
        verdict = await self._coach.score(scene)
        if verdict.score is None or not self.errs(scene.step.id):
            return verdict
        return replace(verdict, score=MAX_POINTS - verdict.score)

    def errs(self, step: str) -> bool:
        """Whether the coach is wrong on the step of this id; it always is or never."""
        return draw(step, self._options.seed) < self._options.share


def _noisy(options: NoisyOptions, build: Callable[[Use], Coach]) -> Coach:
    return Noisy(build(options.coach), options)


@hookimpl
def mappa_coaches() -> Iterable[Offer[Coach]]:
    yield Offer("noisy", _noisy, NoisyOptions, composite=True)
