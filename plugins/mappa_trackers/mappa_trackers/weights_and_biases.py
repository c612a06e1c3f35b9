"""Weights & Biases tracker, online or offline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mappa_core import ConfigError, TrackedRun, Tracker
from mappa_core.files import has_folder
from mappa_trackers.optional_import import import_library

if TYPE_CHECKING:
    from mappa_core import Ending
    from mappa_trackers.options import WandbOptions

MODES = ("online", "offline")
STEP_METRIC = "iteration"
"""X axis of all metrics. The service's own step can only increase, and an evaluation may be logged late."""


class WandbTracker(Tracker):
    """Keeps one run of the service per run, under Mappa's run id, so that a resume continues it."""

    def __init__(self, options: WandbOptions) -> None:
        if options.mode not in MODES:
            raise ConfigError(f"trackers: the mode of wandb is {options.mode!r}; it can be {' or '.join(MODES)}")
        self._options = options
        self._library = import_library("wandb", "wandb")
        self._run: Any = None

    def start(self, run: TrackedRun) -> None:
        options = self._options
        has_folder(run.folder, "wandb")  # raises if it is a link, through which the library would write elsewhere
        self._run = self._library.init(
            project=options.project,
            entity=options.entity,
            group=options.group,
            tags=[*options.tags, run.plugin],
            id=run.id,
            name=run.name,
            resume="allow",
            config=dict(run.config),
            dir=str(run.folder),
            mode=options.mode,
            # A sweep has several runs in one process.
            reinit="create_new",
            settings=self._library.Settings(silent=True, console="off"),
        )
        self._run.define_metric(STEP_METRIC, hidden=True)
        self._run.define_metric("*", step_metric=STEP_METRIC)

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        self._run.log({**metrics, STEP_METRIC: iteration})

    def close(self, ending: Ending) -> None:
        if self._run is not None:
            self._run.finish(exit_code=0 if ending == "done" else 1)
