"""Choosing trajectories of a run: by facets, by words, and page by page from a place on, never by counting.

What it costs hangs on what is shown and on how many trajectories a filter leaves, not on how long the run is. The
tables are the writer's (see `indexing`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from mappa_core.store.counterfactuals import COUNTERFACTUAL
from mappa_core.store.indexing import ENDINGS, has_table
from mappa_core.store.schema import Database

Column = Literal["task", "said", "printed", "judged"]
COLUMNS: tuple[Column, ...] = ("task", "said", "printed", "judged")
Unscored = Literal["failed", "abstained"]
UNSCORED: tuple[Unscored, ...] = ("failed", "abstained")
MOST_CHOICES = 200
"""Values of a facet that are listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which trajectories to show: those to which everything applies that is not None.

    `words` all occur in it, in `column` or anywhere; what stands in double quotes is one phrase. `outcome` is a figure
    and whether it is at its full mark of 1. `score` is a range of points that a verdict lies in, on an action of
    `agent` where one is named. `disagreement` is the least number of points between members of a verdict.
    """

    words: str | None = None
    column: Column | None = None
    split: str | None = None
    iteration: int | None = None
    stratum: str | None = None
    agent: str | None = None
    outcome: tuple[str, bool] | None = None
    score: tuple[float, float] | None = None
    blame: str | None = None
    disagreement: float | None = None
    failure: str | None = None
    breach: str | None = None
    verdict: Unscored | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What there is to choose from, sorted; at most `MOST_CHOICES` of each."""

    stratum: tuple[str, ...] = ()
    agent: tuple[str, ...] = ()
    outcome: tuple[str, ...] = ()
    blame: tuple[str, ...] = ()
    failure: tuple[str, ...] = ()
    breach: tuple[str, ...] = ()
    words: bool = True
    """Whether the run has an index of words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """The facets of one trajectory that a list shows. `scores` maps an agent to the lowest and the highest points that
    its actions got; `disagreement` is the greatest, None where no verdict has members."""

    scores: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    blamed: tuple[str, ...] = ()
    breaches: tuple[str, ...] = ()
    unjudged: tuple[str, ...] = ()
    disagreement: float | None = None


def is_indexed(database: Database) -> bool:
    """Whether the run was recorded with facets."""
    return has_table(database.connection, "facets")


def numbers(
    database: Database, wanted: Wanted, *, before: int | None = None, after: int | None = None, limit: int
) -> list[int]:
    """The numbers of the trajectories that are wanted, the newest first; with `after` the next newer ones, the oldest
    of them first. At most `limit`, from `before` or `after` on, which are left out."""
    clauses, values = _clauses(database, wanted)
    matched = "" if wanted.words is None else query_of(wanted.words, wanted.column)
    place, down = (after, False) if after is not None else (before, True)
    if place is not None:
        clauses.append("t.rowid < ?" if down else "t.rowid > ?")
        values.append(place)
    order, source = f"ORDER BY t.rowid {'DESC' if down else 'ASC'}", "trajectories t"
    if matched:
        source = f"texts CROSS JOIN trajectories t ON t.rowid = texts.rowid / {ENDINGS}"
        clauses.append("texts MATCH ?")
        values.append(matched)
        order = f"ORDER BY texts.rowid {'DESC' if down else 'ASC'}"
        if place is not None:
            clauses.append("texts.rowid < ?" if down else "texts.rowid >= ?")
            values.append(place * ENDINGS if down else (place + 1) * ENDINGS)
    where = f"WHERE {' AND '.join(clauses)}" if clauses else ""
    rows = database.rows(f"SELECT t.rowid FROM {source} {where} {order} LIMIT ?", *values, limit)
    found = list(dict.fromkeys(number for (number,) in rows))
    if len(found) == len(rows) or len(rows) < limit:
        return found
    # One that ended twice is there twice.
    here = {"before": found[-1]} if down else {"after": found[-1]}
    return found + numbers(database, wanted, **here, limit=limit - len(found))


def _clauses(database: Database, wanted: Wanted) -> tuple[list[str], list[Any]]:
    clauses = ["t.split <> ?" if wanted.split is None else "t.split = ?"]
    values: list[Any] = [COUNTERFACTUAL if wanted.split is None else wanted.split]
    if wanted.iteration is not None:
        clauses.append("t.iteration = ?")
        values.append(wanted.iteration)
    for name in ("stratum", "agent", "blame", "failure", "breach", "verdict"):
        value = getattr(wanted, name)
        if value is not None:
            clauses.append("t.rowid IN (SELECT trajectory FROM facets WHERE name = ? AND value = ?)")
            values += [name, value]
    if wanted.outcome is not None:
        name, full = wanted.outcome
        sign = ">=" if full else "<"
        clauses.append(f"t.rowid IN (SELECT trajectory FROM facets WHERE name = ? AND value {sign} 1.0)")
        values.append(f"outcome/{name}")
    if wanted.disagreement is not None:
        clauses.append("t.rowid IN (SELECT trajectory FROM facets WHERE name = 'disagreement' AND value >= ?)")
        values.append(wanted.disagreement)
    if wanted.score is not None:
        agents = distinct(database, "agent") if wanted.agent is None else (wanted.agent,)
        listed = ", ".join("?" * len(agents))
        clauses.append(f"t.rowid IN (SELECT trajectory FROM facets WHERE name IN ({listed}) AND value BETWEEN ? AND ?)")
        values += [*(f"score/{agent}" for agent in agents), *wanted.score]
    return clauses, values


def query_of(words: str, column: Column | None = None) -> str:
    """What FTS5 is asked for: every word and every phrase in double quotes, as text and never as its syntax. The last
    word may go on. Empty where there is nothing to look for."""
    parts = [phrase or word for phrase, word in re.findall(r'"([^"]*)"|([^\s"]+)', words)]
    known = [part for part in parts if re.search(r"\w", part)]
    if not known:
        return ""
    quoted = ['"' + part.replace("\x00", " ") + '"' for part in known]
    goes_on = "" if words.rstrip(" ").endswith('"') else " *"
    asked = " AND ".join(quoted) + goes_on
    return asked if column is None else f"{column} : ({asked})"


def distinct(database: Database, name: str) -> tuple[str, ...]:
    """The values of a facet, sorted, each found by a step in the index."""
    rows = database.rows(
        "WITH RECURSIVE found (value) AS ("
        "SELECT min(value) FROM facets WHERE name = ?1 UNION ALL "
        "SELECT (SELECT min(value) FROM facets WHERE name = ?1 AND value > found.value) FROM found "
        "WHERE found.value IS NOT NULL) SELECT value FROM found WHERE value IS NOT NULL LIMIT ?2",
        name,
        MOST_CHOICES,
    )
    return tuple(value for (value,) in rows)


def outcomes(database: Database) -> tuple[str, ...]:
    """The names of the figures that outcomes have."""
    rows = database.rows(
        "WITH RECURSIVE found (name) AS ("
        "SELECT min(name) FROM facets WHERE name > 'outcome/' AND name < 'outcome0' UNION ALL "
        "SELECT (SELECT min(name) FROM facets WHERE name > found.name AND name < 'outcome0') FROM found "
        "WHERE found.name IS NOT NULL) SELECT name FROM found WHERE name IS NOT NULL LIMIT ?",
        MOST_CHOICES,
    )
    return tuple(name.removeprefix("outcome/") for (name,) in rows)


def choices(database: Database) -> Choices:
    found = {name: distinct(database, name) for name in ("stratum", "agent", "blame", "failure", "breach")}
    return Choices(**found, outcome=outcomes(database), words=has_table(database.connection, "texts"))


def marks(database: Database, number: int) -> Marks:
    """The facets of one trajectory."""
    found: dict[str, list[Any]] = {}
    for name, value in database.rows("SELECT name, value FROM facets WHERE trajectory = ?", number):
        found.setdefault(name, []).append(value)
    scored = {name.removeprefix("score/"): values for name, values in found.items() if name.startswith("score/")}
    return Marks(
        scores={agent: (min(values), max(values)) for agent, values in scored.items()},
        blamed=tuple(found.get("blame", ())),
        breaches=tuple(found.get("breach", ())),
        unjudged=tuple(found.get("verdict", ())),
        disagreement=max(found["disagreement"]) if "disagreement" in found else None,
    )
