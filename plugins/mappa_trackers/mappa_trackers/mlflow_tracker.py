"""MLflow tracker: to a tracking server or a local store."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from mappa_core import TrackedRun, Tracker
from mappa_trackers.optional_import import import_library

if TYPE_CHECKING:
    from mappa_core import Ending
    from mappa_trackers.options import MlflowOptions

RUN_TAG = "mappa.run"
"""The tag with Mappa's run id, by which a resumed run finds its MLflow run."""
MAX_METRICS_PER_CALL, MAX_PARAMS_PER_CALL = 1000, 100
"""Limits of the service per call."""
MAX_PARAM_CHARACTERS = 6000
"""The longest parameter value that the service accepts."""
STATUS_OF_ENDING: Mapping[str, str] = {"done": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}


class MlflowTracker(Tracker):
    """Keeps one MLflow run per run, found again by a tag on resume."""

    def __init__(self, options: MlflowOptions) -> None:
        self._options = options
        self._library = import_library("mlflow", "mlflow")
        self._client: Any = None
        self._run: str | None = None

    def start(self, run: TrackedRun) -> None:
        self._client = self._library.MlflowClient(tracking_uri=self._options.uri)
        experiment = self._experiment()
        runs = self._client.search_runs([experiment], filter_string=f"tags.`{RUN_TAG}` = '{run.id}'", max_results=1)
        if runs:
            self._run = runs[0].info.run_id
            self._client.update_run(self._run, status="RUNNING")
            return
        tags = {RUN_TAG: run.id, "mappa.folder": str(run.folder), "mappa.recipe": f"{run.plugin}/{run.recipe}"}
        self._run = self._client.create_run(experiment, tags=tags, run_name=run.name).info.run_id
        params = [self._library.entities.Param(sanitize_name(key), value) for key, value in flatten_config(run.config)]
        for batch in _batches(params, MAX_PARAMS_PER_CALL):
            self._client.log_batch(self._run, params=batch)

    def _experiment(self) -> str:
        experiment = self._client.get_experiment_by_name(self._options.experiment)
        identifier: str = (
            self._client.create_experiment(self._options.experiment) if experiment is None else experiment.experiment_id
        )
        return identifier

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        now = int(1000 * time.time())
        entries = [
            self._library.entities.Metric(sanitize_name(name), value, now, iteration) for name, value in metrics.items()
        ]
        for batch in _batches(entries, MAX_METRICS_PER_CALL):
            self._client.log_batch(self._run, metrics=batch)

    def close(self, ending: Ending) -> None:
        if self._run is not None:
            self._client.set_terminated(self._run, status=STATUS_OF_ENDING[ending])


def sanitize_name(name: str) -> str:
    """Replace characters that the service does not accept by `_`: all but letters, digits, `_ - . /` and blanks."""
    return re.sub(r"[^\w\-./ ]", "_", name)


def flatten_config(config: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """Yield the config as pairs of dotted name and text; a text that is too long is cut and ends with `…`."""
    if isinstance(config, Mapping) and config:
        for name, value in config.items():
            yield from flatten_config(value, f"{place}.{name}" if place else str(name))
    else:
        text = str(config)
        yield place, text if len(text) <= MAX_PARAM_CHARACTERS else text[: MAX_PARAM_CHARACTERS - 1] + "…"


def _batches(items: list[Any], size: int) -> Iterator[list[Any]]:
    return (items[at : at + size] for at in range(0, len(items), size))
