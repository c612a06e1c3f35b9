"""Trackers of Mappa: TensorBoard, Weights & Biases, MLflow, OpenTelemetry and Ray. Each imports its own library only
when a run uses it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from mappa_core import Offer, hookimpl
from mappa_trackers.options import MlflowOptions, OtelOptions, RayOptions, TensorBoardOptions, WandbOptions

if TYPE_CHECKING:
    from mappa_core import Tracker


@hookimpl
def mappa_trackers() -> Iterable[Offer[Tracker]]:
    yield Offer("tensorboard", _tensorboard, TensorBoardOptions)
    yield Offer("wandb", _wandb, WandbOptions)
    yield Offer("mlflow", _mlflow, MlflowOptions)
    yield Offer("otel", _otel, OtelOptions)
    yield Offer("ray", _ray, RayOptions)


def _tensorboard(options: TensorBoardOptions) -> Tracker:
    from mappa_trackers.tensorboard_tracker import TensorBoardTracker

    return TensorBoardTracker(options)


def _wandb(options: WandbOptions) -> Tracker:
    from mappa_trackers.weights_and_biases import WandbTracker

    return WandbTracker(options)


def _mlflow(options: MlflowOptions) -> Tracker:
    from mappa_trackers.mlflow_tracker import MlflowTracker

    return MlflowTracker(options)


def _otel(options: OtelOptions) -> Tracker:
    from mappa_trackers.opentelemetry_spans import OtelTracker

    return OtelTracker(options)


def _ray(options: RayOptions) -> Tracker:
    from mappa_trackers.ray_metrics import RayTracker

    return RayTracker(options)
