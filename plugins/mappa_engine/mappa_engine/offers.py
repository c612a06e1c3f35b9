"""The engines `local` and `cluster`, the losses that they train with, and credit beyond core's."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from mappa_core import CheckArea, Estimator, Offer, Shaper, hookimpl
from mappa_core.engine import Engine, Loss
from mappa_engine.credit.distill import DistillOptions, build_distill
from mappa_engine.credit.gdpo import GDPO, GDPOOptions
from mappa_engine.credit.maxrl import MaxRL, MaxRLOptions
from mappa_engine.credit.truncation_filter import TruncationFilterOptions, TruncationFilterShaper
from mappa_engine.options import (
    CISPOOptions,
    ClusterOptions,
    GSPOOptions,
    LocalOptions,
    PPOOptions,
    SAPOOptions,
    VESPOOptions,
)


@hookimpl
def mappa_engines() -> Iterable[Offer[Engine]]:
    yield Offer("local", _build_local, LocalOptions)
    yield Offer("cluster", _build_cluster, ClusterOptions)


@hookimpl
def mappa_estimators() -> Iterable[Offer[Estimator]]:
    yield Offer("gdpo", GDPO, GDPOOptions, siblings=True)
    yield Offer("maxrl", MaxRL, MaxRLOptions, siblings=True)
    yield Offer("distill", build_distill, DistillOptions, composite=True)


@hookimpl
def mappa_shapers() -> Iterable[Offer[Shaper]]:
    yield Offer("truncation_filter", TruncationFilterShaper, TruncationFilterOptions)


@hookimpl
def mappa_checks() -> Iterable[CheckArea]:
    from mappa_engine import doctor_checks

    yield CheckArea("libraries", doctor_checks.check_libraries)
    yield CheckArea("processor", doctor_checks.check_processor)
    yield CheckArea("gpu", doctor_checks.check_gpus)
    yield CheckArea("cluster", doctor_checks.check_cluster)
    yield CheckArea("node of a cluster", doctor_checks.check_node)
    yield CheckArea("engines", doctor_checks.check_engines)


@hookimpl
def mappa_losses() -> Iterable[Offer[Loss]]:
    yield Offer("ppo", _lazy_loss("PPOLoss"), PPOOptions)
    yield Offer("gspo", _lazy_loss("GSPOLoss"), GSPOOptions)
    yield Offer("cispo", _lazy_loss("CISPOLoss"), CISPOOptions)
    yield Offer("sapo", _lazy_loss("SAPOLoss"), SAPOOptions)
    yield Offer("vespo", _lazy_loss("VESPOLoss"), VESPOOptions)


def _build_local(options: LocalOptions) -> Engine:
    from mappa_engine.local import LocalEngine

    return LocalEngine(options)


def _build_cluster(options: ClusterOptions) -> Engine:
    from mappa_engine.cluster.engine import ClusterEngine

    return ClusterEngine(options)


def _lazy_loss(name: str) -> Callable[[Any], Loss]:
    """Return a builder that imports the class `name`, and with it torch, when a loss is built."""

    def build(options: Any) -> Loss:
        from mappa_engine import losses

        loss: Loss = getattr(losses, name)(options)
        return loss

    return build
