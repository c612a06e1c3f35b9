"""Ray tracker: metrics as gauges beside those of Ray's nodes and actors, for Prometheus."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import structlog

from mappa_core import ConfigError, TrackedRun, Tracker
from mappa_trackers.optional_import import import_library

if TYPE_CHECKING:
    from mappa_core import Ending
    from mappa_trackers.options import RayOptions

log = structlog.get_logger()

FIGURE_GAUGE, ITERATION_GAUGE = "mappa_figure", "mappa_iteration"
"""Names of the gauges; Prometheus sees them with the prefix `ray_`."""
METRICS_MODULE = "ray.dashboard.optional_deps"
"""Module that Ray needs to export metrics; without it they would be dropped silently."""


class RayTracker(Tracker):
    """Sets one gauge for all metrics, with the labels `run` and `name`, and one for the number of finished iterations.
    The node of this process exports them at its metrics port as long as its Ray runs."""

    def __init__(self, options: RayOptions) -> None:
        import_library(METRICS_MODULE, "ray")
        self._ray = import_library("ray", "ray")
        self._metrics = import_library("ray.util.metrics", "ray")
        self._run = ""

    def start(self, run: TrackedRun) -> None:
        if not self._ray.is_initialized():
            raise ConfigError("trackers: ray needs the Ray of a run with engine.use=cluster, and this process has none")
        self._run = run.name
        self._figure = self._metrics.Gauge(
            FIGURE_GAUGE,
            description="A figure of a Mappa run, by its name in docs/metrics.md",
            tag_keys=("run", "name"),
        )
        self._iteration = self._metrics.Gauge(
            ITERATION_GAUGE, description="Iterations that a Mappa run has finished", tag_keys=("run",)
        )
        log.info("tracker.ray", metrics=metrics_address(self._ray))

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        self._iteration.set(iteration, tags={"run": self._run})
        for name, value in metrics.items():
            self._figure.set(value, tags={"run": self._run, "name": name})

    def close(self, ending: Ending) -> None:
        """Do nothing: the gauges keep their last values until Ray ends."""


def metrics_address(ray: Any) -> str:
    """Return the URL at which the node of this process exports its metrics."""
    own = ray.get_runtime_context().get_node_id()
    node = next(node for node in ray.nodes() if node["NodeID"] == own)
    return f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
