"""The list of a run's trajectories, with filters, text search and pagination."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request

from mappa.look.view.trajectory_search import (
    COLUMNS,
    UNSCORED,
    FoundTrajectory,
    TrajectoryFilter,
    TrajectorySearch,
)
from mappa.look.view.web.plays import read_plays
from mappa.look.view.web.rendering import truncate
from mappa.runs import RunReader
from mappa_core import MAX_SCORE

PAGE_SIZE = 50
MAX_NUMBER = 1e15
"""Bound of the numbers of a URL: whole ones below are exact, and fit into the database's."""
MAX_WORDS = 90
"""Characters of a task that are shown in place of its id."""
MAX_NEWER = 100
"""Maximum number of newer trajectories that are counted."""
FILTER_PARAMETERS = (
    "words", "column", "split", "iteration", "stratum", "agent", "outcome", "low", "high", "blame", "disagreement",
    "failure", "breach", "verdict",
)  # fmt: skip
"""URL parameters that filter. `low` and `high` are points, `outcome` is `full:NAME` or `short:NAME`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterQuery:
    """The filters of a URL: the given parameters and the search filter built from them."""

    parameters: Mapping[str, str]
    search: TrajectoryFilter

    @property
    def query(self) -> str:
        """The filters as a URL query, without the question mark."""
        return urlencode([(name, value.encode(errors="replace")) for name, value in self.parameters.items()])


def parse_filters(request: Request) -> FilterQuery:
    """Parse the filters of a request. Raises HTTPException 400 for an invalid number."""
    given = {name: value for name in FILTER_PARAMETERS if (value := request.query_params.get(name, "").strip())}
    low, high = _read_number(given, "low"), _read_number(given, "high")
    outcome = given.get("outcome")
    mark, _, name = (outcome or "").partition(":")
    iteration = _read_number(given, "iteration")
    return FilterQuery(
        parameters=given,
        search=TrajectoryFilter(
            words=given.get("words"),
            column=_read_choice(given, "column", COLUMNS),
            split=given.get("split"),
            iteration=None if iteration is None else int(iteration),
            stratum=given.get("stratum"),
            agent=given.get("agent"),
            outcome=None if outcome is None else (name, mark == "full"),
            score=None if low is None and high is None else (low or 0.0, MAX_SCORE if high is None else high),
            blame=given.get("blame"),
            disagreement=_read_number(given, "disagreement"),
            failure=given.get("failure"),
            breach=given.get("breach"),
            verdict=_read_choice(given, "verdict", UNSCORED),
        ),
    )


def build_trajectories_page(reader: RunReader, folder: Path, request: Request) -> dict[str, Any]:
    filters, search = parse_filters(request), TrajectorySearch(reader)
    before = _read_number(request.query_params, "before")
    rows = search.find(filters.search, before=None if before is None else int(before), limit=PAGE_SIZE + 1)
    return {
        "filters": filters,
        "plays": read_plays(folder),
        "trained": reader.latest_iteration() is not None,
        "choices": search.load_choices(),
        "rows": rows[:PAGE_SIZE],
        "prompts": {one.row.id: first_words(reader.task(one.row.id).prompt) for one in rows[:PAGE_SIZE]},
        "more": rows[PAGE_SIZE - 1].number if len(rows) > PAGE_SIZE else None,
        "newest": rows[0].number if rows and before is None else None,
    }


def first_words(prompt: str) -> str:
    """The beginning of a task's text, on one line, in whole words unless a word is longer than that."""
    return truncate(" ".join(prompt[: 4 * MAX_WORDS].split()), MAX_WORDS)


def count_newer(reader: RunReader, folder: Path, request: Request) -> dict[str, Any]:
    """Count the trajectories that match the filters and began after number `after`."""
    filters, after = parse_filters(request), _read_number(request.query_params, "after")
    if after is None:
        raise HTTPException(400, "after is missing: the number of the newest trajectory that is shown")
    count = TrajectorySearch(reader).count(filters.search, after=int(after), limit=MAX_NEWER)
    return {"filters": filters, "after": int(after), "count": count, "max": MAX_NEWER}


def find_neighbours(
    reader: RunReader, filters: FilterQuery, number: int
) -> tuple[FoundTrajectory | None, FoundTrajectory | None]:
    """The next newer and the next older trajectory that match the filters."""
    search = TrajectorySearch(reader)
    up = search.find(filters.search, after=number, limit=1)
    down = search.find(filters.search, before=number, limit=1)
    return (up[0] if up else None), (down[0] if down else None)


def _read_number(given: Mapping[str, str], name: str) -> float | None:
    text = given.get(name, "")
    if not text:
        return None
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not abs(number) <= MAX_NUMBER:
        raise HTTPException(400, f"{name}: {text} is no number from -{MAX_NUMBER:g} to {MAX_NUMBER:g}")
    return number


def _read_choice(given: Mapping[str, str], name: str, known: tuple[Any, ...]) -> Any:
    value = given.get(name)
    if value is not None and value not in known:
        raise HTTPException(400, f"{name}: must be one of {', '.join(known)}, not {value}")
    return value
