"""The tracker `report`, which every run has: writes `report.html` into the run's folder when the run is done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mappa_core import TrackedRun, Tracker

if TYPE_CHECKING:
    from mappa_core import Ending


@dataclass(frozen=True)
class ReportOptions:
    """`write`: whether to write the page; `audit`: with every verdict."""

    write: bool = True
    audit: bool = False


class ReportTracker(Tracker):
    """Writes the report of a run that is done. One that was stopped has none before it is done."""

    def __init__(self, options: ReportOptions) -> None:
        self._options = options
        self._folder: Path | None = None

    def start(self, run: TrackedRun) -> None:
        self._folder = run.folder

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Do nothing: the page is made from the run's folder."""

    def close(self, ending: Ending) -> None:
        if not self._options.write or self._folder is None or ending != "done":
            return
        from mappa import runs
        from mappa.look.view.report import write_report

        with runs.open(self._folder) as reader:
            summary = reader.summary
        assert summary is not None  # written before trackers are closed
        write_report(self._folder, summary, audit=self._options.audit)
