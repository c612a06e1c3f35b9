"""Trajectory search: filters by facets and words, with keyset pagination instead of offsets.

The cost depends on the page size and on how many trajectories a filter leaves, not on the length of the run. The tables
are filled by the writer (see `indexing`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from mappa_core.store.counterfactuals import COUNTERFACTUAL
from mappa_core.store.schema import Database, database_errors
from mappa_core.store.search_index import MAX_ENDINGS, has_table

Column = Literal["task", "said", "printed", "judged"]
COLUMNS: tuple[Column, ...] = ("task", "said", "printed", "judged")  # Texts that words are searched in.
Unscored = Literal["failed", "abstained"]
UNSCORED: tuple[Unscored, ...] = ("failed", "abstained")  # Statuses of verdicts without a score.
MAX_CHOICES = 200
"""Maximum number of listed values of a facet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryFilter:
    """Filter of trajectories: all conditions that are not None must hold.

    `words` must all occur, in `column` or anywhere; text in double quotes is one phrase. `outcome` is a figure and
    whether it has its full value of 1. `score` is a range of points of a verdict, on an action of `agent` if one is
    named. `disagreement` is the minimum difference in points between members of a verdict.
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
class FilterChoices:
    """Values to choose from in a filter, sorted; at most `MAX_CHOICES` of each."""

    stratum: tuple[str, ...] = ()
    agent: tuple[str, ...] = ()
    outcome: tuple[str, ...] = ()
    blame: tuple[str, ...] = ()
    failure: tuple[str, ...] = ()
    breach: tuple[str, ...] = ()
    words: bool = True
    """Whether the run has an index of words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryFacets:
    """Facets of one trajectory for a list. `scores` maps an agent to the lowest and highest points of its actions;
    `disagreement` is the maximum, None if no verdict has members."""

    scores: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    blamed: tuple[str, ...] = ()
    breaches: tuple[str, ...] = ()
    unjudged: tuple[str, ...] = ()
    disagreement: float | None = None


def is_indexed(database: Database) -> bool:
    """Whether the run was recorded with facets."""
    with database_errors(database.path):
        return has_table(database.connection, "facets")


def find_numbers(
    database: Database,
    trajectory_filter: TrajectoryFilter,
    *,
    before: int | None = None,
    after: int | None = None,
    limit: int,
) -> list[int]:
    """Numbers of the matching trajectories, the newest first; with `after` the next newer ones, the oldest of them
    first. At most `limit`, starting next to `before` or `after`, both exclusive."""
    clauses, values = _clauses(database, trajectory_filter)
    matched = "" if trajectory_filter.words is None else to_fts_query(trajectory_filter.words, trajectory_filter.column)
    place, down = (after, False) if after is not None else (before, True)
    if place is not None:
        clauses.append("t.rowid < ?" if down else "t.rowid > ?")
        values.append(place)
    order, source = f"ORDER BY t.rowid {'DESC' if down else 'ASC'}", "trajectories t"
    if matched:
        source = f"texts CROSS JOIN trajectories t ON t.rowid = texts.rowid / {MAX_ENDINGS}"
        clauses.append("texts MATCH ?")
        values.append(matched)
        order = f"ORDER BY texts.rowid {'DESC' if down else 'ASC'}"
        if place is not None:
            clauses.append("texts.rowid < ?" if down else "texts.rowid >= ?")
            values.append(place * MAX_ENDINGS if down else (place + 1) * MAX_ENDINGS)
    where = f"WHERE {' AND '.join(clauses)}" if clauses else ""
    rows = database.rows(f"SELECT t.rowid FROM {source} {where} {order} LIMIT ?", *values, limit)
    numbers = list(dict.fromkeys(number for (number,) in rows))
    if len(numbers) == len(rows) or len(rows) < limit:
        return numbers
    # A trajectory that ended twice matches twice.
    here = {"before": numbers[-1]} if down else {"after": numbers[-1]}
    return numbers + find_numbers(database, trajectory_filter, **here, limit=limit - len(numbers))


def _clauses(database: Database, trajectory_filter: TrajectoryFilter) -> tuple[list[str], list[Any]]:
    clauses = ["t.split <> ?" if trajectory_filter.split is None else "t.split = ?"]
    values: list[Any] = [COUNTERFACTUAL if trajectory_filter.split is None else trajectory_filter.split]
    if trajectory_filter.iteration is not None:
        clauses.append("t.iteration = ?")
        values.append(trajectory_filter.iteration)
    for name in ("stratum", "agent", "blame", "failure", "breach", "verdict"):
        value = getattr(trajectory_filter, name)
        if value is not None:
            clauses.append("t.rowid IN (SELECT trajectory FROM facets WHERE name = ? AND value = ?)")
            values += [name, value]
    if trajectory_filter.outcome is not None:
        name, full = trajectory_filter.outcome
        sign = ">=" if full else "<"
        clauses.append(f"t.rowid IN (SELECT trajectory FROM facets WHERE name = ? AND value {sign} 1.0)")
        values.append(f"outcome/{name}")
    if trajectory_filter.disagreement is not None:
        clauses.append("t.rowid IN (SELECT trajectory FROM facets WHERE name = 'disagreement' AND value >= ?)")
        values.append(trajectory_filter.disagreement)
    if trajectory_filter.score is not None:
        agents = facet_values(database, "agent") if trajectory_filter.agent is None else (trajectory_filter.agent,)
        listed = ", ".join("?" * len(agents))
        clauses.append(f"t.rowid IN (SELECT trajectory FROM facets WHERE name IN ({listed}) AND value BETWEEN ? AND ?)")
        values += [*(f"score/{agent}" for agent in agents), *trajectory_filter.score]
    return clauses, values


def to_fts_query(words: str, column: Column | None = None) -> str:
    """Convert search words to an FTS5 query: every word and every phrase in double quotes, escaped so that none is
    syntax. The last word matches as a prefix. Empty if there is nothing to search for."""
    parts = [phrase or word for phrase, word in re.findall(r'"([^"]*)"|([^\s"]+)', words)]
    known = [part for part in parts if re.search(r"\w", part)]
    if not known:
        return ""
    quoted = ['"' + part.replace("\x00", " ") + '"' for part in known]
    prefix_operator = "" if words.rstrip(" ").endswith('"') else " *"
    query = " AND ".join(quoted) + prefix_operator
    return query if column is None else f"{column} : ({query})"


def facet_values(database: Database, name: str) -> tuple[str, ...]:
    """Distinct values of a facet, sorted, found by index lookups instead of a scan."""
    rows = database.rows(
        "WITH RECURSIVE found (value) AS ("
        "SELECT min(value) FROM facets WHERE name = ?1 UNION ALL "
        "SELECT (SELECT min(value) FROM facets WHERE name = ?1 AND value > found.value) FROM found "
        "WHERE found.value IS NOT NULL) SELECT value FROM found WHERE value IS NOT NULL LIMIT ?2",
        name,
        MAX_CHOICES,
    )
    return tuple(value for (value,) in rows)


def outcome_names(database: Database) -> tuple[str, ...]:
    """Names of the figures in outcomes."""
    rows = database.rows(
        "WITH RECURSIVE found (name) AS ("
        "SELECT min(name) FROM facets WHERE name > 'outcome/' AND name < 'outcome0' UNION ALL "
        "SELECT (SELECT min(name) FROM facets WHERE name > found.name AND name < 'outcome0') FROM found "
        "WHERE found.name IS NOT NULL) SELECT name FROM found WHERE name IS NOT NULL LIMIT ?",
        MAX_CHOICES,
    )
    return tuple(name.removeprefix("outcome/") for (name,) in rows)


def load_choices(database: Database) -> FilterChoices:
    """Load the values to choose from in a filter."""
    facets = {name: facet_values(database, name) for name in ("stratum", "agent", "blame", "failure", "breach")}
    return FilterChoices(**facets, outcome=outcome_names(database), words=has_table(database.connection, "texts"))


def load_facets(database: Database, number: int) -> TrajectoryFacets:
    """Load the facets of one trajectory."""
    with database.damage_reported():
        facets: dict[str, list[Any]] = {}
        for name, value in database.rows("SELECT name, value FROM facets WHERE trajectory = ?", number):
            facets.setdefault(name, []).append(value)
        scored = {name.removeprefix("score/"): values for name, values in facets.items() if name.startswith("score/")}
        return TrajectoryFacets(
            scores={agent: (min(values), max(values)) for agent, values in scored.items()},
            blamed=tuple(facets.get("blame", ())),
            breaches=tuple(facets.get("breach", ())),
            unjudged=tuple(facets.get("verdict", ())),
            disagreement=max(facets["disagreement"]) if "disagreement" in facets else None,
        )
