"""MLflow: a server, or a store of its own."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from mappa_core import TrackedRun, Tracker
from mappa_trackers.library import library

if TYPE_CHECKING:
    from mappa_core import Ending
    from mappa_trackers.options import MlflowOptions

RUN_TAG = "mappa.run"
"""The tag that holds the id of a run, by which a resume finds the service's own."""
MOST_METRICS, MOST_PARAMS = 1000, 100
"""What the service takes in one call."""
MOST_CHARACTERS = 6000
"""The longest value of a setting that the service takes."""
STATUS: Mapping[str, str] = {"done": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}


class MlflowTracker(Tracker):
    """One run of the service per run, found again by a tag."""

    def __init__(self, options: MlflowOptions) -> None:
        self._options = options
        self._library = library("mlflow", "mlflow")
        self._client: Any = None
        self._run: str | None = None

    def start(self, run: TrackedRun) -> None:
        self._client = self._library.MlflowClient(tracking_uri=self._options.uri)
        experiment = self._experiment()
        found = self._client.search_runs([experiment], filter_string=f"tags.`{RUN_TAG}` = '{run.id}'", max_results=1)
        if found:
            self._run = found[0].info.run_id
            self._client.update_run(self._run, status="RUNNING")
            return
        tags = {RUN_TAG: run.id, "mappa.folder": str(run.folder), "mappa.recipe": f"{run.plugin}/{run.recipe}"}
        self._run = self._client.create_run(experiment, tags=tags, run_name=run.name).info.run_id
        params = [self._library.entities.Param(accepted(key), value) for key, value in settings(run.config)]
        for some in _parts(params, MOST_PARAMS):
            self._client.log_batch(self._run, params=some)

    def _experiment(self) -> str:
        found = self._client.get_experiment_by_name(self._options.experiment)
        known: str = self._client.create_experiment(self._options.experiment) if found is None else found.experiment_id
        return known

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        now = int(1000 * time.time())
        made = [self._library.entities.Metric(accepted(name), value, now, iteration) for name, value in metrics.items()]
        for some in _parts(made, MOST_METRICS):
            self._client.log_batch(self._run, metrics=some)

    def close(self, ending: Ending) -> None:
        if self._run is not None:
            self._client.set_terminated(self._run, status=STATUS[ending])


def accepted(name: str) -> str:
    """A name as the service accepts it: letters, digits and `_ - . / ` and blanks; other characters become `_`."""
    return re.sub(r"[^\w\-./ ]", "_", name)


def settings(config: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """The settings under dotted names, as text; what is too long is cut and ends with `…`."""
    if isinstance(config, Mapping) and config:
        for name, value in config.items():
            yield from settings(value, f"{place}.{name}" if place else str(name))
    else:
        text = str(config)
        yield place, text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 1] + "…"


def _parts(items: list[Any], most: int) -> Iterator[list[Any]]:
    return (items[at : at + most] for at in range(0, len(items), most))
