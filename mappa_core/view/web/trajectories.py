"""The list of a run's trajectories: filters, words, and page after page from a place on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request

from mappa_core.records import MAX_SCORE
from mappa_core.store.finding import COLUMNS, UNSCORED, Choices, Wanted
from mappa_core.store.reader import FoundRow, Reader

PAGE = 50
NEWER = 100
"""Newer trajectories that are counted, at most."""
FILTERS = (
    "words", "column", "split", "iteration", "stratum", "agent", "outcome", "low", "high", "blame", "disagreement",
    "failure", "breach", "verdict",
)  # fmt: skip
"""Parameters of the address that filter; `low` and `high` are points, `outcome` is `full:NAME` or `short:NAME`."""
SPLITS = ("train", "eval", "counterfactual")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The filters of an address, as they stand in it and as they are looked for."""

    given: Mapping[str, str]
    wanted: Wanted

    @property
    def query(self) -> str:
        """The filters as the end of an address, without a question mark."""
        return urlencode([(name, value.encode(errors="replace")) for name, value in self.given.items()])


def asked_of(request: Request) -> Asked:
    """Raises HTTPException 400 for a number that is none."""
    given = {name: value for name in FILTERS if (value := request.query_params.get(name, "").strip())}
    low, high = _number(given, "low"), _number(given, "high")
    outcome = given.get("outcome")
    mark, _, name = (outcome or "").partition(":")
    iteration = _number(given, "iteration")
    return Asked(
        given=given,
        wanted=Wanted(
            words=given.get("words"),
            column=_one_of(given, "column", COLUMNS),
            split=given.get("split"),
            iteration=None if iteration is None else int(iteration),
            stratum=given.get("stratum"),
            agent=given.get("agent"),
            outcome=None if outcome is None else (name, mark == "full"),
            score=None if low is None and high is None else (low or 0.0, MAX_SCORE if high is None else high),
            blame=given.get("blame"),
            disagreement=_number(given, "disagreement"),
            failure=given.get("failure"),
            breach=given.get("breach"),
            verdict=_one_of(given, "verdict", UNSCORED),
        ),
    )


def page(reader: Reader, folder: Path, request: Request) -> dict[str, Any]:
    asked = asked_of(request)
    if not reader.is_indexed:
        return {"asked": asked, "indexed": False, "choices": Choices(), "rows": [], "more": None, "newest": None}
    before = _number(request.query_params, "before")
    rows = reader.find(asked.wanted, before=None if before is None else int(before), limit=PAGE + 1)
    return {
        "asked": asked,
        "indexed": True,
        "choices": reader.choices(),
        "rows": rows[:PAGE],
        "more": rows[PAGE - 1].number if len(rows) > PAGE else None,
        "newest": rows[0].number if rows and before is None else None,
    }


def newer(reader: Reader, folder: Path, request: Request) -> dict[str, Any]:
    """How many trajectories that the filters leave began after number `after`."""
    asked, after = asked_of(request), _number(request.query_params, "after")
    if after is None:
        raise HTTPException(400, "after is missing: the number of the newest trajectory that is shown")
    count = len(reader.numbers(asked.wanted, after=int(after), limit=NEWER))
    return {"asked": asked, "after": int(after), "count": count, "most": NEWER}


def neighbours(reader: Reader, asked: Asked, number: int) -> tuple[FoundRow | None, FoundRow | None]:
    """The next newer and the next older trajectory that the filters leave."""
    if not reader.is_indexed:
        return None, None
    up = reader.find(asked.wanted, after=number, limit=1)
    down = reader.find(asked.wanted, before=number, limit=1)
    return (up[0] if up else None), (down[0] if down else None)


def _number(given: Mapping[str, str], name: str) -> float | None:
    text = given.get(name, "")
    if not text:
        return None
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise HTTPException(400, f"{name}: {text} is no number")
    return number


def _one_of(given: Mapping[str, str], name: str, known: tuple[Any, ...]) -> Any:
    value = given.get(name)
    if value is not None and value not in known:
        raise HTTPException(400, f"{name}: must be one of {', '.join(known)}, not {value}")
    return value
