"""Table `iterations`: reports of finished iterations; the upgrade of databases of earlier schemas."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import msgspec

from mappa.store.agent_columns import AgentSummary
from mappa.store.iteration_report import (
    USAGE_COUNTS,
    CoachFigures,
    CounterfactualFigures,
    HealthWarning,
    IterationReport,
    OutcomeFigures,
    Staleness,
    VerdictCount,
)
from mappa.store.queries import load_events
from mappa.store.schema import DATABASE_SCHEMA, Database
from mappa_core.errors import ToolError
from mappa_core.protocols import Alarm, Correlation, DriftReport, Gap
from mappa_core.records import Interval, Usage

Flat = Mapping[str, float]
"""Metrics by the names that 0.1.0 stored."""


def load_iterations(database: Database) -> list[IterationReport]:
    """Reports of all finished iterations, in order."""
    if database.schema == 1:
        return _load_flat(database)
    return [_decode(database, text) for (text,) in database.rows("SELECT report FROM iterations ORDER BY number")]


def load_latest_iteration(database: Database) -> IterationReport | None:
    """Report of the last finished iteration; None before the first."""
    if database.schema == 1:
        return next(reversed(_load_flat(database)), None)
    rows = database.rows("SELECT report FROM iterations ORDER BY number DESC LIMIT 1")
    return _decode(database, rows[0][0]) if rows else None


def _decode(database: Database, text: str) -> IterationReport:
    """Decode a report; fast path for text without escapes (see `codec`)."""
    with database.damage_reported():
        plain = '"@' not in text
        return msgspec.json.decode(text, type=IterationReport) if plain else database.unpack(IterationReport, text)


def upgrade_database(database: Database) -> None:
    """Bring a database of an earlier schema to the one of today, so that a resumed run has one form of its records."""
    if database.schema == DATABASE_SCHEMA:
        return
    reports = _load_flat(database) if database.schema == 1 else None
    with database.transaction() as connection:
        if reports is not None:
            connection.execute("DROP TABLE iterations")
            connection.execute("CREATE TABLE iterations (number INTEGER PRIMARY KEY, report TEXT NOT NULL)")
            rows = [(report.iteration, database.pack(report)) for report in reports]
            connection.executemany("INSERT INTO iterations VALUES (?, ?)", rows)
        connection.execute(files(__package__).joinpath("labels.sql").read_text("utf-8"))
        connection.execute(f"PRAGMA user_version = {DATABASE_SCHEMA}")
    database.schema = DATABASE_SCHEMA


def _load_flat(database: Database) -> list[IterationReport]:
    """Reports of a run of 0.1.0, whose warnings and alarms are in events alone."""
    warnings: dict[int, tuple[HealthWarning, ...]] = {}
    alarms: dict[int, tuple[Alarm, ...]] = {}
    with database.damage_reported():
        for event in load_events(database, "health"):
            warnings[event.body["iteration"]] = msgspec.convert(event.body["warnings"], tuple[HealthWarning, ...])
        for event in load_events(database, "drift"):
            alarms[event.body["iteration"]] = msgspec.convert(event.body["alarms"], tuple[Alarm, ...])
    rows = database.rows("SELECT number, metrics FROM iterations ORDER BY number")
    flat = {number: database.unpack(dict[str, float], text) for number, text in rows}
    return [report_of_flat(number, flat[number], warnings.get(number, ()), alarms.get(number, ())) for number in flat]


def report_of_flat(
    number: int, flat: Flat, warnings: tuple[HealthWarning, ...] = (), alarms: tuple[Alarm, ...] = ()
) -> IterationReport:
    """Convert the flat metrics of an iteration of 0.1.0. Reasons of missing scores and kinds of errors other than those
    of tools were not recorded."""
    lost = int(flat["tools/lost"])
    kinds = {ToolError.__name__: lost, "unknown": int(flat["rollouts/failed"]) - lost}
    stale = Staleness(mean=flat["staleness_mean"], max=flat["staleness_max"]) if "staleness_mean" in flat else None
    strata = sorted({name.partition("/figure/")[0].removesuffix("/accuracy") for name in _under("stratum/", flat)})
    return IterationReport(
        iteration=number,
        outcomes=_outcomes(flat),
        strata={stratum: _outcomes(_under(f"stratum/{stratum}/", flat)) for stratum in strata},
        rollouts=int(flat["rollouts"]),
        late=int(flat["rollouts/late"]),
        joined=int(flat["rollouts/joined"]),
        staleness=stale,
        failed_rollouts={kind: count for kind, count in kinds.items() if count},
        retried_calls=int(flat["tools/attempts_again"]),
        tokens=int(flat["tokens"]),
        agents={agent: AgentSummary(**figures) for agent, figures in _by_owner(_under("agent/", flat)).items()},
        coach=CoachFigures(
            total=_verdict_count(_under("coach/", flat)),
            by_agent=_verdict_counts(_under("coach/agent/", flat)),
            by_coach=_verdict_counts(_under("coach/name/", flat)),
        ),
        drift=_drift(_under("drift/", flat), alarms),
        policies=_by_owner(_under("policy/", flat)),
        warnings=warnings,
        corrections={name: int(count) for name, count in _under("corrections/", flat).items()},
        counterfactuals=_counterfactuals(_under("counterfactual/", flat)),
        seconds=_under("seconds/", flat),
    )


def _under(prefix: str, flat: Flat) -> dict[str, float]:
    return {name.removeprefix(prefix): value for name, value in flat.items() if name.startswith(prefix)}


def _by_owner(flat: Flat) -> dict[str, dict[str, Any]]:
    """Group `OWNER/FIGURE` by owner, whose name may hold a `/`."""
    found: dict[str, dict[str, Any]] = {}
    for name, value in flat.items():
        owner, _, figure = name.rpartition("/")
        found.setdefault(owner, {})[figure] = value
    return found


def _outcomes(flat: Flat) -> OutcomeFigures:
    return OutcomeFigures(accuracy=flat.get("accuracy"), figures=_under("figure/", flat))


def _verdict_counts(flat: Flat) -> dict[str, VerdictCount]:
    return {owner: _verdict_count(figures) for owner, figures in _by_owner(flat).items()}


def _verdict_count(flat: Flat) -> VerdictCount:
    counts = {name: int(flat[name]) for name in USAGE_COUNTS if name in flat}
    return VerdictCount(
        scored=int(flat["verdicts"] - flat["abstained"] - flat["failed"]),
        abstained=int(flat["abstained"]),
        failed=int(flat["failed"]),
        replayed=int(flat["replayed"]) if "replayed" in flat else 0,
        usage=Usage(**counts, usd=flat.get("usd")) if "calls" in counts else None,
    )


def _drift(flat: Flat, alarms: tuple[Alarm, ...]) -> DriftReport:
    gaps: list[Gap] = []
    correlations: list[Correlation] = []
    for owner, figures in _by_owner(flat).items():
        phase, _, rest = owner.partition("/")
        if "correlation" in figures:
            correlations.append(Correlation(phase=phase, agent=rest, r=figures["correlation"]))  # type: ignore[arg-type]
        if "gap" in figures:
            names: dict[str, Any] = dict(zip(("agent", "stratifier", "stratum"), rest.split("/", 2), strict=True))
            points = Interval(mean=figures["gap"], low=figures.get("gap_low"), high=figures.get("gap_high"))
            growth = Interval(mean=figures["growth"]) if "growth" in figures else None
            gaps.append(Gap(phase=phase, **names, points=points, growth=growth))  # type: ignore[arg-type]
    return DriftReport(gaps=tuple(gaps), correlations=tuple(correlations), alarms=alarms)


def _counterfactuals(flat: Flat) -> CounterfactualFigures | None:
    if not flat:
        return None
    missing = {why: int(count) for why, count in _under("missing/", flat).items()}
    counts = {name: int(flat[name]) for name in ("rollouts", "lost", "settled")}
    return CounterfactualFigures(**counts, missing=missing)
