"""How far a coach can be believed while it trains: bias of its scores, corrected, and watched for drift."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from mappa_calibration.options import BiasOptions
from mappa_core import Coach, Offer, Use, hookimpl


@hookimpl
def mappa_coaches() -> Iterable[Offer[Coach]]:
    yield Offer("bias_corrected", _build, BiasOptions, composite=True)


def _build(options: BiasOptions, build: Callable[[Use], Coach]) -> Coach:
    from mappa_calibration.corrected_coach import BiasCorrectedCoach

    second = None if options.second is None else build(options.second)
    return BiasCorrectedCoach(build(options.coach), options, second)
