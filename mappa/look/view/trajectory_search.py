"""Trajectory search: filters by facets and words, with keyset pagination instead of offsets.

The cost depends on the page size and on how many trajectories a filter leaves, not on the length of the run. The tables
`facets` and `texts` are filled by the writer of the run (docs/reference/store.md).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from mappa.runs import RunReader, TrajectoryRow
from mappa.store.search_index import MAX_ENDINGS
from mappa_core import RunError

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


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundTrajectory:
    """A search result. `number` is the trajectory's position among all of the run, the key for the next page."""

    number: int
    row: TrajectoryRow
    facets: TrajectoryFacets


class TrajectorySearch:
    """Searches the trajectories of one run. All methods but `is_available` raise RunError for a run that was recorded
    without an index, by an early version of Mappa."""

    def __init__(self, reader: RunReader) -> None:
        self._reader = reader

    @property
    def is_available(self) -> bool:
        """Whether the run was recorded with an index."""
        return self._has_table("facets")

    def find(
        self,
        trajectory_filter: TrajectoryFilter,
        *,
        before: int | None = None,
        after: int | None = None,
        limit: int = 50,
    ) -> list[FoundTrajectory]:
        """One page of matching trajectories older than number `before`, the newest first; with `after` those next newer
        than that number, the oldest of them first."""
        return [
            FoundTrajectory(number=number, row=self._reader.row(identity), facets=self._load_facets(number))
            for number, identity in self._find(trajectory_filter, before=before, after=after, limit=limit)
        ]

    def count(self, trajectory_filter: TrajectoryFilter, *, after: int, limit: int) -> int:
        """Count matching trajectories newer than number `after`, up to `limit`."""
        return len(self._find(trajectory_filter, before=None, after=after, limit=limit))

    def load_choices(self) -> FilterChoices:
        """Load the values to choose from in a filter."""
        self._require_index()
        facets = {name: self._facet_values(name) for name in ("stratum", "agent", "blame", "failure", "breach")}
        return FilterChoices(**facets, outcome=self._outcome_names(), words=self._has_table("texts"))

    def _find(
        self, trajectory_filter: TrajectoryFilter, *, before: int | None, after: int | None, limit: int
    ) -> list[tuple[int, str]]:
        """Numbers and ids of the matching trajectories, in the order of `find`; both bounds are exclusive."""
        self._require_index()
        clauses, values = self._clauses(trajectory_filter)
        words = trajectory_filter.words
        matched = "" if words is None else to_fts_query(words, trajectory_filter.column)
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
        rows = self._reader.query(f"SELECT t.rowid, t.id FROM {source} {where} {order} LIMIT ?", *values, limit)
        found = list(dict.fromkeys((number, identity) for number, identity in rows))
        if len(found) == len(rows) or len(rows) < limit:
            return found
        # A trajectory that ended twice matches twice.
        last = found[-1][0]
        rest = self._find(
            trajectory_filter,
            before=last if down else None,
            after=None if down else last,
            limit=limit - len(found),
        )
        return found + rest

    def _clauses(self, trajectory_filter: TrajectoryFilter) -> tuple[list[str], list[Any]]:
        clauses = ["t.split IN ('train', 'eval')" if trajectory_filter.split is None else "t.split = ?"]
        values: list[Any] = [] if trajectory_filter.split is None else [trajectory_filter.split]
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
            agent = trajectory_filter.agent
            named = "name > 'score/' AND name < 'score0'" if agent is None else "name = ?"
            clauses.append(f"t.rowid IN (SELECT trajectory FROM facets WHERE {named} AND value BETWEEN ? AND ?)")
            values += [*([] if agent is None else [f"score/{agent}"]), *trajectory_filter.score]
        return clauses, values

    def _facet_values(self, name: str) -> tuple[str, ...]:
        """Distinct values of a facet, sorted, found by index lookups instead of a scan."""
        rows = self._reader.query(
            "WITH RECURSIVE found (value) AS ("
            "SELECT min(value) FROM facets WHERE name = ?1 UNION ALL "
            "SELECT (SELECT min(value) FROM facets WHERE name = ?1 AND value > found.value) FROM found "
            "WHERE found.value IS NOT NULL) SELECT value FROM found WHERE value IS NOT NULL LIMIT ?2",
            name,
            MAX_CHOICES,
        )
        return tuple(value for (value,) in rows)

    def _outcome_names(self) -> tuple[str, ...]:
        rows = self._reader.query(
            "WITH RECURSIVE found (name) AS ("
            "SELECT min(name) FROM facets WHERE name > 'outcome/' AND name < 'outcome0' UNION ALL "
            "SELECT (SELECT min(name) FROM facets WHERE name > found.name AND name < 'outcome0') FROM found "
            "WHERE found.name IS NOT NULL) SELECT name FROM found WHERE name IS NOT NULL LIMIT ?",
            MAX_CHOICES,
        )
        return tuple(name.removeprefix("outcome/") for (name,) in rows)

    def _load_facets(self, number: int) -> TrajectoryFacets:
        facets: dict[str, list[Any]] = {}
        for name, value in self._reader.query("SELECT name, value FROM facets WHERE trajectory = ?", number):
            facets.setdefault(name, []).append(value)
        try:
            return _parse_facets(facets)
        except (TypeError, AttributeError) as error:
            raise RunError(f"{self._reader.folder / 'run.db'}: it is damaged: {error}") from error

    def _require_index(self) -> None:
        if not self.is_available:
            raise RunError(f"{self._reader.folder} was recorded by a version of Mappa that kept no index to find by")

    def _has_table(self, name: str) -> bool:
        return bool(self._reader.query("SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?", name))


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


def _parse_facets(facets: Mapping[str, list[Any]]) -> TrajectoryFacets:
    scored = {name.removeprefix("score/"): values for name, values in facets.items() if name.startswith("score/")}
    return TrajectoryFacets(
        scores={agent: (min(values), max(values)) for agent, values in scored.items()},
        blamed=tuple(facets.get("blame", ())),
        breaches=tuple(facets.get("breach", ())),
        unjudged=tuple(facets.get("verdict", ())),
        disagreement=max(facets["disagreement"]) if "disagreement" in facets else None,
    )
