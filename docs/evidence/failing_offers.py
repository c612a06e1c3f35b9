"""A coach that fails on some actions, offered as a plugin that no package holds.

`load(modules={"failing": failing_offers})` adds it to a registry.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from mappa_core import Coach, ConfigError, DelegatingCoach, Offer, Scene, Use, Verdict, hookimpl


@dataclass
class FailingOptions:
    """Of the offer `failing`."""

    coach: Use = field(default_factory=Use)
    """Who judges the other actions."""
    share: float = 0.0
    """Of actions that it fails on, drawn by the step's id and `seed`."""
    invents: float | None = None
    """Points that an action gets instead, as if they were a judgement; None: the verdict says that it failed."""
    seed: int = 0


class Failing(DelegatingCoach):
    """Judges as `coach` does, but for the share of actions that it fails on."""

    def __init__(self, coach: Coach, options: FailingOptions) -> None:
        if not 0 <= options.share <= 1:
            raise ConfigError(f"coach.options.share is {options.share:g}; it must lie between 0 and 1")
        super().__init__({"coach": coach})
        self._coach, self._options = coach, options

    async def score(self, scene: Scene) -> Verdict:
        if not self.fails(scene.step.id):
            return await self._coach.score(scene)
        if self._options.invents is None:
            return Verdict.failed("the coach was made to fail here")
        return Verdict.scored(self._options.invents, "invented")

    def fails(self, step: str) -> bool:
        """Whether the coach fails on the step of this id; it always does or never."""
        return draw(step, self._options.seed) < self._options.share


def draw(step: str, seed: int) -> float:
    """A number in [0, 1) that is always the same of a step's id and a seed."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{step}".encode(), digest_size=8).digest()) / 2**64


def _failing(options: FailingOptions, build: Callable[[Use], Coach]) -> Coach:
    return Failing(build(options.coach), options)


@hookimpl
def mappa_coaches() -> Iterable[Offer[Coach]]:
    yield Offer("failing", _failing, FailingOptions, composite=True)
