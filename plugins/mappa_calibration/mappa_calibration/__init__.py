"""Coaches around coaches: several as one, and one whose bias is corrected and watched for drift."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from mappa_calibration.ensemble_options import EnsembleOptions
from mappa_calibration.label_calibration import Calibration as Calibration
from mappa_calibration.options import BiasOptions
from mappa_core import Coach, Offer, Use, hookimpl


@hookimpl
def mappa_coaches() -> Iterable[Offer[Coach]]:
    yield Offer("ensemble", _build_ensemble, EnsembleOptions, composite=True)
    yield Offer("bias_corrected", _build_corrected, BiasOptions, composite=True)


def _build_ensemble(options: EnsembleOptions, build: Callable[[Use], Coach]) -> Coach:
    from mappa_calibration.ensemble import build_ensemble

    return build_ensemble(options, build)


def _build_corrected(options: BiasOptions, build: Callable[[Use], Coach]) -> Coach:
    from mappa_calibration.corrected_coach import BiasCorrectedCoach

    second = None if options.second is None else build(options.second)
    return BiasCorrectedCoach(build(options.coach), options, second)
