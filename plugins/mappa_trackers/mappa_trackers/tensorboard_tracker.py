"""TensorBoard tracker: event files for `tensorboard --logdir`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mappa_core import TrackedRun, Tracker
from mappa_core.files import has_folder
from mappa_trackers.optional_import import import_library

if TYPE_CHECKING:
    from mappa_core import Ending
    from mappa_trackers.options import TensorBoardOptions

DEFAULT_FOLDER = "tensorboard"


class TensorBoardTracker(Tracker):
    """Writes a scalar per metric and iteration, and the config as text. A resumed run adds an event file whose
    `purge_step` makes TensorBoard discard later iterations."""

    def __init__(self, options: TensorBoardOptions) -> None:
        self._options = options
        self._library = import_library("torch.utils.tensorboard", "tensorboard")
        self._writer: Any = None

    def start(self, run: TrackedRun) -> None:
        folder = run.folder / DEFAULT_FOLDER if self._options.folder is None else Path(self._options.folder) / run.name
        has_folder(folder.parent, folder.name)  # raises if it is a link, through which events would go elsewhere
        self._writer = self._library.SummaryWriter(str(folder), purge_step=run.done + 1 if run.done else None)
        settings = json.dumps(run.config, indent=2)
        self._writer.add_text("config", "".join(f"    {line}\n" for line in settings.splitlines()), run.done)

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, iteration)
        self._writer.flush()

    def close(self, ending: Ending) -> None:
        if self._writer is not None:
            self._writer.close()
