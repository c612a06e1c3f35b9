"""Where a reader of a run begins: at the newest training rollouts that did not succeed and have somebody to blame, not
at an evaluation that nobody judged."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from urllib.parse import quote, urlencode

from mappa.look.counted_verdicts import read_metric
from mappa.look.view.trajectory_search import FoundTrajectory, TrajectoryFilter, TrajectorySearch
from mappa.runs import RunReader
from mappa_core import RunError

MAX_SEARCHED = 50
"""Failures in which one with blame is looked for, the newest."""


def first_filters(reader: RunReader) -> dict[str, str]:
    """URL parameters of the list of trajectories: the failures of the first split in which some verdict blames an
    agent; none if there is no such split."""
    found = _blamed_failure(reader)
    return {} if found is None else {"split": found[0], "outcome": f"short:{found[1]}"}


def telling_address(folder: Path) -> str:
    """Path and query of the page on the newest blamed failure of a run; of its trajectories if there is none."""
    base = f"/runs/{quote(folder.resolve().name, safe='')}"
    with RunReader(folder) as reader:
        found = _blamed_failure(reader)
    if found is None:
        return f"{base}/trajectories"
    split, metric, one = found
    return f"{base}/trajectory?{urlencode({'id': one.row.id, 'split': split, 'outcome': f'short:{metric}'})}"


def _blamed_failure(reader: RunReader) -> tuple[str, str, FoundTrajectory] | None:
    """Split, metric and trajectory of the newest failure with blame."""
    search = TrajectorySearch(reader)
    metric = _metric(reader)
    if metric not in search.load_choices().outcome:
        return None
    for split in ("train", "eval"):
        failed = TrajectoryFilter(split=split, outcome=(metric, False))
        for one in search.find(failed, limit=MAX_SEARCHED):
            if one.facets.blamed:
                return split, metric, one
    return None


def _metric(reader: RunReader) -> str:
    summary = None
    with suppress(RunError):
        summary = reader.summary
    return read_metric(reader, summary)
