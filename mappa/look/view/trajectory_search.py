"""Trajectory search: filters by facets and words, with keyset pagination instead of offsets.

Once the run's index is made, the cost depends on the page size and on how many trajectories a filter leaves, not on the
length of the run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from mappa.look.view.search_index import open_index
from mappa.runs import RunReader, TrajectoryRow
from mappa.store.schema import DATABASE_NAME
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
    verdict: tuple[str, ...] = ()
    disagreement: bool = True
    """Whether any verdict has members."""
    words: bool = True
    """Whether words can be searched for: SQLite has FTS5."""


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
    """Searches the trajectories of one run. Raises RunError for a damaged run."""

    def __init__(self, reader: RunReader) -> None:
        self._reader = reader
        rows = reader.query("SELECT value FROM meta WHERE name = 'run'")
        if not rows:
            raise RunError(f"{reader.folder} is damaged: its table meta has no 'run'")
        run = str(rows[0][0])
        self._index = open_index((reader.folder / DATABASE_NAME).absolute(), run)

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
        found = self._find(trajectory_filter, before=before, after=after, limit=limit)
        facets = self._load_facets([number for number, _ in found])
        return [
            FoundTrajectory(number=number, row=self._reader.row(identity), facets=facets[number])
            for number, identity in found
        ]

    def count(self, trajectory_filter: TrajectoryFilter, *, after: int, limit: int) -> int:
        """Count matching trajectories newer than number `after`, up to `limit`."""
        return len(self._find(trajectory_filter, before=None, after=after, limit=limit))

    def load_choices(self) -> FilterChoices:
        """Load the values to choose from in a filter."""
        names = ("stratum", "agent", "blame", "failure", "breach", "verdict")
        facets = {name: self._facet_values(name) for name in names}
        return FilterChoices(
            **facets,
            outcome=self._outcome_names(),
            disagreement=bool(self._index.query("SELECT 1 FROM facets WHERE name = 'disagreement' LIMIT 1")),
            words=self._index.has_words,
        )

    def _find(
        self, trajectory_filter: TrajectoryFilter, *, before: int | None, after: int | None, limit: int
    ) -> list[tuple[int, str]]:
        """Numbers and ids of the matching trajectories, in the order of `find`; both bounds are exclusive."""
        clauses, values = self._clauses(trajectory_filter)
        words = trajectory_filter.words
        matched = "" if words is None else to_fts_query(words, trajectory_filter.column)
        if matched and not self._index.has_words:
            raise RunError("words cannot be searched for: the SQLite of this Python was built without FTS5")
        place, down = (after, False) if after is not None else (before, True)
        if place is not None:
            clauses.append("t.number < ?" if down else "t.number > ?")
            values.append(place)
        order, source = f"ORDER BY t.number {'DESC' if down else 'ASC'}", "trajectories t"
        if matched:
            source = "texts CROSS JOIN trajectories t ON t.number = texts.rowid"
            clauses.append("texts MATCH ?")
            values.append(matched)
            order = f"ORDER BY texts.rowid {'DESC' if down else 'ASC'}"
            if place is not None:
                clauses.append("texts.rowid < ?" if down else "texts.rowid > ?")
                values.append(place)
        where = f"WHERE {' AND '.join(clauses)}" if clauses else ""
        query = f"SELECT t.number, t.id FROM {source} {where} {order} LIMIT ?"
        return self._index.query(query, *values, limit, words=bool(matched))

    def _clauses(self, trajectory_filter: TrajectoryFilter) -> tuple[list[str], list[Any]]:
        clauses = ["t.split IN ('train', 'eval')" if trajectory_filter.split is None else "t.split = ?"]
        values: list[Any] = [] if trajectory_filter.split is None else [trajectory_filter.split]
        if trajectory_filter.iteration is not None:
            clauses.append("t.iteration = ?")
            values.append(trajectory_filter.iteration)
        for name in ("stratum", "agent", "blame", "failure", "breach", "verdict"):
            value = getattr(trajectory_filter, name)
            if value is not None:
                clauses.append("t.number IN (SELECT trajectory FROM facets WHERE name = ? AND value = ?)")
                values += [name, value]
        if trajectory_filter.outcome is not None:
            name, full = trajectory_filter.outcome
            sign = ">=" if full else "<"
            clauses.append(f"t.number IN (SELECT trajectory FROM facets WHERE name = ? AND value {sign} 1.0)")
            values.append(f"outcome/{name}")
        if trajectory_filter.disagreement is not None:
            clauses.append("t.number IN (SELECT trajectory FROM facets WHERE name = 'disagreement' AND value >= ?)")
            values.append(trajectory_filter.disagreement)
        if trajectory_filter.score is not None:
            agent = trajectory_filter.agent
            named = "name > 'score/' AND name < 'score0'" if agent is None else "name = ?"
            clauses.append(f"t.number IN (SELECT trajectory FROM facets WHERE {named} AND value BETWEEN ? AND ?)")
            values += [*([] if agent is None else [f"score/{agent}"]), *trajectory_filter.score]
        return clauses, values

    def _facet_values(self, name: str) -> tuple[str, ...]:
        """Distinct values of a facet, sorted, found by index lookups instead of a scan."""
        rows = self._index.query(
            "WITH RECURSIVE found (value) AS ("
            "SELECT min(value) FROM facets WHERE name = ?1 UNION ALL "
            "SELECT (SELECT min(value) FROM facets WHERE name = ?1 AND value > found.value) FROM found "
            "WHERE found.value IS NOT NULL) SELECT value FROM found WHERE value IS NOT NULL LIMIT ?2",
            name,
            MAX_CHOICES,
        )
        return tuple(value for (value,) in rows)

    def _outcome_names(self) -> tuple[str, ...]:
        rows = self._index.query(
            "WITH RECURSIVE found (name) AS ("
            "SELECT min(name) FROM facets WHERE name > 'outcome/' AND name < 'outcome0' UNION ALL "
            "SELECT (SELECT min(name) FROM facets WHERE name > found.name AND name < 'outcome0') FROM found "
            "WHERE found.name IS NOT NULL) SELECT name FROM found WHERE name IS NOT NULL LIMIT ?",
            MAX_CHOICES,
        )
        return tuple(name.removeprefix("outcome/") for (name,) in rows)

    def _load_facets(self, numbers: Sequence[int]) -> dict[int, TrajectoryFacets]:
        query = "SELECT trajectory, name, value FROM facets WHERE trajectory IN (SELECT value FROM json_each(?))"
        facets: dict[int, dict[str, list[Any]]] = {number: {} for number in numbers}
        for number, name, value in self._index.query(query, json.dumps(numbers)):
            facets[number].setdefault(name, []).append(value)
        try:
            return {number: _parse_facets(own) for number, own in facets.items()}
        except (TypeError, AttributeError) as error:
            raise RunError(f"{self._reader.folder / DATABASE_NAME}: it is damaged: {error}") from error


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
