"""Ray: figures beside those of its nodes and actors, where Prometheus finds them all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import structlog

from mappa_core import ConfigError, TrackedRun, Tracker
from mappa_trackers.library import library

if TYPE_CHECKING:
    from mappa_core import Ending
    from mappa_trackers.options import RayOptions

log = structlog.get_logger()

FIGURE, ITERATION = "mappa_figure", "mappa_iteration"
"""Gauges; Prometheus sees them with `ray_` before."""
TOOLS = "ray.dashboard.optional_deps"
"""What Ray needs to offer metrics; without it they would be taken and go nowhere."""


class RayTracker(Tracker):
    """A gauge for all figures, with `run` and `name` as labels, and one for the number of finished iterations. The node
    of this process offers them at its metrics port for as long as its Ray runs."""

    def __init__(self, options: RayOptions) -> None:
        library(TOOLS, "ray")
        self._ray = library("ray", "ray")
        self._metrics = library("ray.util.metrics", "ray")
        self._run = ""

    def start(self, run: TrackedRun) -> None:
        if not self._ray.is_initialized():
            raise ConfigError("trackers: ray needs the Ray of a run with engine.use=cluster, and this process has none")
        self._run = run.name
        self._figure = self._metrics.Gauge(
            FIGURE, description="A figure of a Mappa run, by its name in docs/metrics.md", tag_keys=("run", "name")
        )
        self._iteration = self._metrics.Gauge(
            ITERATION, description="Iterations that a Mappa run has finished", tag_keys=("run",)
        )
        log.info("tracker.ray", metrics=address(self._ray))

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        self._iteration.set(iteration, tags={"run": self._run})
        for name, value in metrics.items():
            self._figure.set(value, tags={"run": self._run, "name": name})

    def close(self, ending: Ending) -> None:
        """The gauges keep their last values until Ray ends."""


def address(ray: Any) -> str:
    """Where the node of this process offers its metrics."""
    own = ray.get_runtime_context().get_node_id()
    node = next(node for node in ray.nodes() if node["NodeID"] == own)
    return f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
