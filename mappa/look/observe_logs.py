"""From a log to whom is to blame: imports what is new in it, judges what is new in the run, and sums up the whole."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mappa.look.counted_verdicts import LOW_SCORE
from mappa.look.importing import ImportResult, LogMapping, import_logs
from mappa.look.importing.log_mapping import IMPORT_METRIC
from mappa.look.judge_new import NewVerdicts, judge_new_plays
from mappa.look.observe import Diagnosis, observe_run
from mappa.runs import RunReader
from mappa.session.trust import restore_trusted
from mappa_core import NOBODY, Verdict
from mappa_core.plugins import Registry
from mappa_core.records import ENVIRONMENT, TASK, USER
from mappa_core.transport import Provider

DEFAULT_COACH = "evidence"
"""The coach of an observation: it asks no model, and needs no key."""
NEWEST = 100
"""Plays of which examples are shown: the others are summed up in the database, and not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentBlame:
    """One agent in all plays: its actions, those with a score, the mean of these (points, 0-10; None without any), how
    many are below `LOW_SCORE`, and the plays looked at in which some verdict blames it."""

    agent: str
    actions: int
    scored: int
    score: float | None
    low: int
    blamed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaySums:
    """All plays of an imported run, by the verdicts that count. `known` of them have an outcome, or ended early without
    one, which counts 0 as in any evaluation; `success` is its mean (0-1; both are 0 and None where no play has one).
    `unsuccessful` are below 1 or ended early. Blame is counted over the `looked_at` plays: these, or all where no
    outcome is known; the coach has judged `judged` of them. In `cannot_tell` of those no verdict blames anybody, and
    `blamed_others` counts those in which one blames the user, the environment or the task."""

    plays: int
    known: int
    success: float | None
    unsuccessful: int
    looked_at: int
    judged: int
    cannot_tell: int
    blamed_others: Mapping[str, int]
    agents: tuple[AgentBlame, ...]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LogObservation:
    """The result of observing logs: what was `imported` now and the new `verdicts`, the `sums` of the whole run in
    `folder`, and a `diagnosis` of its newest plays, at most `NEWEST`, with examples."""

    folder: Path
    imported: ImportResult
    verdicts: NewVerdicts
    sums: PlaySums
    diagnosis: Diagnosis

    def __repr__(self) -> str:
        """What `mappa observe LOG` prints."""
        from mappa.look.cli.observe_log import show_observation
        from mappa.look.printed import as_printed

        return as_printed(lambda console: show_observation(console, self, quiet=False))

    def _repr_html_(self) -> str:
        from mappa.look.html import observation_html

        return observation_html(self)


async def observe_logs(
    registry: Registry,
    paths: Sequence[Path],
    *,
    coach: str = DEFAULT_COACH,
    settings: Sequence[str] = (),
    root: Path = Path("runs"),
    name: str | None = None,
    examples: int = 3,
    trust: bool = False,
    waits: bool = False,
    spent_usd: float = 0.0,
    on_import: Callable[[ImportResult], None] | None = None,
    on_providers: Callable[[Sequence[Provider]], None] | None = None,
    on_start: Callable[[int], None] | None = None,
    on_verdict: Callable[[Verdict], None] | None = None,
) -> LogObservation:
    """Import what is new in the logs at `paths` (files, folders, patterns of names), judge the plays that `coach` has
    not judged, and sum up. The same call again reads and asks nothing twice, also after a kill.

    Args:
        coach: the offer that judges.
        settings: `KEY=VALUE` options of the coach; `coach.KEY=VALUE` are those of the section around it.
        root: the folder of runs; `name` None derives that of the run from the paths, so that it is found again. A run
            that `import_logs` made there keeps its options.
        examples: how many of each agent's lowest-scored actions to return.
        trust: observe into a run of somebody else.
        waits: a play is judged when its log was read once more and it did not go on, for logs that are being written.
        spent_usd: what of `coach.spend_usd` is spent already, by calls before this one.
        on_import: called before anything is judged.
        on_providers, on_start, on_verdict: as of `judge_new_plays`.

    Raises:
        InputError, RunError, UntrustedRun: as `import_logs`.
        ConfigError, PluginError: the coach cannot be built.
    """
    own = (word if word.startswith("coach.") else f"coach.options.{word}" for word in settings)
    words = (f"coach.use={json.dumps(coach)}", *own)
    registry.offer("coaches", coach)  # Before anything is written.
    imported = import_logs(registry, paths, LogMapping(), root=root, name=name, trust=trust)
    if on_import is not None:
        on_import(imported)
    composed = restore_trusted(registry, imported.folder, words, trust=trust)
    verdicts = await judge_new_plays(
        composed,
        registry,
        imported.folder,
        leave=imported.recorded if waits else (),
        spent_usd=spent_usd,
        on_providers=on_providers,
        on_start=on_start,
        on_verdict=on_verdict,
    )
    return LogObservation(
        folder=imported.folder,
        imported=imported,
        verdicts=verdicts,
        sums=sum_up(imported.folder),
        diagnosis=observe_run(imported.folder, examples=examples, newest=NEWEST),
    )


_COUNTED = """
WITH counted AS (
    SELECT step, score, blame, max(number - 1000000 * (status = 'failed')) FROM verdicts GROUP BY step
)
"""
"""The last verdict on each action that did not fail, if there is one; SQLite takes the row of the maximum."""
_OUTCOME = f"json_extract(outcome, '$.{IMPORT_METRIC}')"
_UNSUCCESSFUL = f"(error IS NOT NULL OR {_OUTCOME} < 1)"
_VALUE = f"coalesce({_OUTCOME}, CASE WHEN error IS NOT NULL THEN 0.0 END)"


def sum_up(folder: Path) -> PlaySums:
    """Sum up all plays of an imported run in its database: none is read as a whole. Raises RunError."""
    with RunReader(folder) as reader:
        places = {agent: place for place, agent in enumerate(reader.team.agents)}
        ((plays, recorded, known, success, unsuccessful),) = reader.query(
            f"SELECT count(*), count({_OUTCOME}), count({_VALUE}), avg({_VALUE}), "
            f"count(*) FILTER (WHERE {_UNSUCCESSFUL}) FROM trajectories WHERE finished"
        )
        if not recorded:  # Plays that ended early alone make no share of successes.
            known, success = 0, None
        looked_at = _UNSUCCESSFUL if known or unsuccessful else "1"
        rows = reader.query(
            f"{_COUNTED} SELECT agent, count(*), count(score), avg(score), count(*) FILTER (WHERE score < ?) "
            "FROM steps LEFT JOIN counted ON counted.step = steps.id GROUP BY agent",
            LOW_SCORE,
        )
        judging = (
            "FROM counted JOIN steps ON steps.id = counted.step "
            f"JOIN trajectories ON trajectories.id = steps.trajectory WHERE finished AND {looked_at}"
        )
        blames = f"blame IS NOT NULL AND blame != '{NOBODY}'"
        blame = Counter(
            dict(
                reader.query(
                    f"{_COUNTED} SELECT blame, count(DISTINCT trajectory) {judging} AND {blames} GROUP BY blame"
                )
            )
        )
        ((judged, told),) = reader.query(
            f"{_COUNTED} SELECT count(DISTINCT trajectory), "
            f"count(DISTINCT CASE WHEN {blames} THEN trajectory END) {judging}"
        )
    looked = unsuccessful if known or unsuccessful else plays
    return PlaySums(
        plays=plays,
        known=known,
        success=success,
        unsuccessful=unsuccessful,
        looked_at=looked,
        judged=judged,
        cannot_tell=judged - told,
        blamed_others={name: blame[name] for name in (USER, ENVIRONMENT, TASK) if name in blame},
        agents=tuple(
            AgentBlame(agent=agent, actions=actions, scored=scored, score=score, low=low, blamed=blame[agent])
            for agent, actions, scored, score, low in sorted(rows, key=lambda row: places.get(row[0], len(places)))
        ),
    )
