"""Judges the plays of an imported run that a coach has not judged, each once, and goes on where it was killed.

A verdict is named by its action and its coach (with its options), so that one that is there is not asked for again. The
run keeps how far each coach came, so that what was judged is not looked through for what was not.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from secrets import token_hex

import msgspec

from mappa.config.compose import ComposedConfig
from mappa.look.coach_eval.batch_judge import JudgingLimits, judge_actions
from mappa.look.coach_eval.metrics import VerdictCounts, count_statuses
from mappa.look.importing.trajectories import IMPORT_SPLIT
from mappa.look.judging_record import record_judging
from mappa.rollout.named_coach import NamedCoach
from mappa.runs import RunReader
from mappa.session.stored_runs import StoredScenes, open_coach, open_stored_scenes
from mappa.store.folder import RunFolder
from mappa_core import Scene, Trajectory, Verdict
from mappa_core.calls.spend_ledger import Ledger
from mappa_core.plugins import Registry
from mappa_core.transport import Provider

JUDGED_NOTE = "judged/"
"""Prefix of the notes of how far coaches came."""
PLAYS_AT_ONCE = 64
"""Plays in memory, after which it is kept how far the coach came."""
_UNJUDGED = "SELECT number, id FROM trajectories WHERE number > ? AND +split = ? AND finished ORDER BY number"
_PLAY = "SELECT id FROM trajectories WHERE number = ?"
_HOW_MANY = frozenset({"spend_usd", "timeout_s", "max_missing", "cassette"})
"""Settings of a coach that do not change what it says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewVerdicts:
    """What `coach` said of `plays` that it had not judged. `usd` is None if a price is unknown; calls whose bill is not
    known cost `uncertain_usd` at most. Verdicts that failed are asked for again the next time; a larger share of them
    than `max_missing` is too much."""

    coach: str
    plays: int
    counts: VerdictCounts
    usd: float | None
    uncertain_usd: float
    max_missing: float


class _Progress(msgspec.Struct):
    """The plays that a coach has judged: all up to the number `until` but those `left`, of which a verdict failed or
    which had to wait."""

    until: int = 0
    left: list[int] = msgspec.field(default_factory=list)


async def judge_new_plays(
    composed: ComposedConfig,
    registry: Registry,
    path: Path,
    *,
    leave: Collection[str] = (),
    spent_usd: float = 0.0,
    on_providers: Callable[[Sequence[Provider]], None] | None = None,
    on_start: Callable[[int], None] | None = None,
    on_verdict: Callable[[Verdict], None] | None = None,
) -> NewVerdicts:
    """Judge the plays of the imported run in `path` that the coach of `composed` has not judged.

    Args:
        leave: ids of plays that are left for the next time.
        spent_usd: what of `coach.spend_usd` is spent already, by calls before this one.
        on_providers: called before the first verdict with all providers that data will be sent to, as is `on_start`
            with the number of plays; not called if there is nothing to judge.
        on_verdict: called with every verdict.

    Raises:
        RunError: the folder is in use, or is not a run.
        ConfigError, PluginError: the coach cannot be built.
    """
    config = composed.config
    name = name_judgement(composed)
    cap = config.coach.spend_usd
    ledger = Ledger(None if cap is None else max(0.0, cap - spent_usd))
    verdicts: Sequence[Verdict] = ()
    with RunFolder.open(path) as folder, RunReader(path) as reader:
        judged = _JudgedPlays(folder, name)
        due = judged.find_due(reader, leave)
        if due:
            async with (
                open_stored_scenes(config, registry, reader.files) as scenes,
                open_coach(config, registry, path, scenes.bench) as coach,
            ):
                if on_providers is not None:
                    on_providers(coach.coach.providers)
                if on_start is not None:
                    on_start(len(due))
                record_judging(folder.store, registry, composed, name=name, split=IMPORT_SPLIT)
                limits = JudgingLimits(
                    concurrency=config.sampling.concurrency, timeout_s=config.coach.timeout_s, ledger=ledger
                )
                judging = _Judging(name, coach, scenes, limits, folder, reader, judged, on_verdict)
                verdicts = await judging.judge_all(due)
    return NewVerdicts(
        coach=config.coach.use,
        plays=len(due),
        counts=count_statuses(verdicts),
        usd=ledger.total_usd,
        uncertain_usd=ledger.uncertain_usd,
        max_missing=config.coach.max_missing,
    )


def name_judgement(composed: ComposedConfig) -> str:
    """Name what the coach of a config says: 8 hex digits of what it is and its options."""
    section: Mapping[str, object] = composed.document["coach"]
    said = {key: value for key, value in section.items() if key not in _HOW_MANY}
    return sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:8]


class _JudgedPlays:
    """How far the coach of this name came in a run, in whose notes it is kept."""

    def __init__(self, folder: RunFolder, name: str) -> None:
        self._store = folder.store
        self._note = JUDGED_NOTE + name
        self._progress = folder.store.note(self._note, _Progress) or _Progress()

    def find_due(self, reader: RunReader, leave: Collection[str]) -> list[tuple[int, str]]:
        """Number and id of the plays that came since, and of those that were left, in order. Those whose id is in
        `leave` are left: they stay due, also when those after them are judged."""
        progress = self._progress
        due = [(int(number), str(play)) for number, play in reader.query(_UNJUDGED, progress.until, IMPORT_SPLIT)]
        for number in (number for number in progress.left if number <= progress.until):
            due += [(number, str(play)) for (play,) in reader.query(_PLAY, number)]
        left = {number for number, play in due if play in leave}
        if left:
            progress.left = sorted({*progress.left, *left})
            self._store.set_note(self._note, progress)
        return sorted((number, play) for number, play in due if number not in left)

    def record(self, numbers: Collection[int], failed: Collection[int]) -> None:
        """Keep that the plays of these numbers are judged, but those of which a verdict failed."""
        self._progress.left = sorted({*self._progress.left}.difference(numbers).union(failed))
        self._progress.until = max(self._progress.until, *numbers)
        self._store.set_note(self._note, self._progress)


class _Judging:
    """Judges plays and stores their verdicts: those on a play together, where the coach judges it as a whole."""

    def __init__(
        self,
        name: str,
        coach: NamedCoach,
        scenes: StoredScenes,
        limits: JudgingLimits,
        folder: RunFolder,
        reader: RunReader,
        judged: _JudgedPlays,
        on_verdict: Callable[[Verdict], None] | None,
    ) -> None:
        self._name = name
        self._coach = coach
        self._scenes = scenes
        self._limits = limits
        self._store = folder.store
        self._reader = reader
        self._judged = judged
        self._on_verdict = on_verdict
        self._verdicts: list[Verdict] = []
        self._waiting: dict[str, list[Verdict]] = {}
        self._given: set[str] = set()
        """Steps of which there is a verdict, though it is asked for another one of their play."""

    async def judge_all(self, plays: Sequence[tuple[int, str]]) -> Sequence[Verdict]:
        """Judge plays, by number and id, until the coach answers nothing any more, and return the verdicts that were
        stored."""
        # A batch of a provider should hold all that there is to ask, and is waited for once.
        batched = any(provider.batched for provider in self._coach.coach.providers)
        size = len(plays) if batched else PLAYS_AT_ONCE
        for start in range(0, len(plays), size):
            if not await self._judge(plays[start : start + size]):
                break  # As at its cap: the others are asked for the next time.
        return self._verdicts

    async def _judge(self, plays: Sequence[tuple[int, str]]) -> bool:
        """Judge some plays and keep that they are judged. Returns whether the coach answered."""
        review = self._coach.coach.by_trajectory
        asked: list[Sequence[Scene]] = []
        for _, identity in plays:
            play = self._reader.trajectory(identity)
            play = replace(play, task=self._scenes.find_task(play.task, IMPORT_SPLIT))
            asked.append([await self._scenes.with_truth(scene) for scene in self._select(play, review=review)])
        sizes = {scenes[0].step.id.rpartition("/")[0]: len(scenes) for scenes in asked if scenes}

        def finalize(verdict: Verdict) -> Verdict:
            trajectory = verdict.step.rpartition("/")[0]
            waiting = self._waiting.setdefault(trajectory, [])
            waiting.append(self._with_identity(verdict))
            if not review or len(waiting) == sizes[trajectory]:
                self._store_verdicts(self._waiting.pop(trajectory))
            return verdict

        given = await judge_actions(self._coach, asked, self._limits, review=review, finalize=finalize)
        failed = [
            number
            for (number, _), verdicts in zip(plays, given, strict=True)
            if any(verdict.status == "failed" for verdict in verdicts)
        ]
        self._judged.record([number for number, _ in plays], failed)
        statuses = [verdict.status for verdicts in given for verdict in verdicts]
        return not statuses or any(status != "failed" for status in statuses)

    def _select(self, play: Trajectory, *, review: bool) -> Sequence[Scene]:
        """The scenes that have no verdict of this coach; all of a play that it judges as a whole, if one has none."""
        given = {verdict.step for verdict in play.verdicts if verdict.id == self._identity(verdict)}
        self._given |= given
        scenes = self._scenes.live(play)
        missing = [scene for scene in scenes if scene.step.id not in given]
        return scenes if review and missing else missing

    def _identity(self, verdict: Verdict) -> str:
        return f"{verdict.step}/{self._coach.name}/again/{self._name}"

    def _with_identity(self, verdict: Verdict) -> Verdict:
        # One that failed is no answer, so that it leaves the name of the answer to the next one.
        suffix = f"-{token_hex(4)}" if verdict.status == "failed" else ""
        return replace(verdict, id=self._identity(verdict) + suffix, phase="again")

    def _store_verdicts(self, verdicts: Sequence[Verdict]) -> None:
        verdicts = [verdict for verdict in verdicts if verdict.step not in self._given]
        with self._store.together():
            for verdict in verdicts:
                self._store.record_verdict(verdict)
        self._verdicts += verdicts
        if self._on_verdict is not None:
            for verdict in verdicts:
                self._on_verdict(verdict)
