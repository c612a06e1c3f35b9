"""Proof of blame: the blamed action of a failed play is replaced, the rest is played live, and the play may flip.

Three replacements are compared, each with the later actions at the seeds of the original: the coach's correction of the
blamed action (or, without one, an action that is sampled anew), a random action of the play replaced the same way, and
the blamed action sampled anew, which says how much is luck.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from random import Random
from typing import Literal

import msgspec

from mappa.config.compose import ComposedConfig
from mappa.evaluation.statistics import paired_gain, share_interval
from mappa.look.importing.offers import IMPORT_RECIPE
from mappa.look.interventions import (
    LOST,
    SUCCESS,
    Blame,
    Intervention,
    InterventionPlayer,
    TrajectoryJudge,
    find_blame,
    judging_limits,
)
from mappa.runs import RunReader
from mappa.session.builder import open_session
from mappa.session.runtime import create_folder_for, record_session_events
from mappa.session.stored_runs import StoredScenes, open_coach
from mappa_core import RunError, Split, Task, ToolError, Trajectory, Verdict
from mappa_core.files import storage_errors, write_atomic
from mappa_core.plugins import Registry
from mappa_core.records import Interval
from mappa_core.tools.file_archive import copy_archive
from mappa_core.transport import Provider

Arm = Literal["blamed", "random", "resampled"]
ARMS: tuple[Arm, ...] = ("blamed", "random", "resampled")
NOBODY_BLAMED = "nobody is blamed"
POLICIES = "policies"
"""The folder of a checkpoint that holds what the engine saved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What became of the blame in one failed play. `corrected`: the coach said what would have been better. `flips`
    says of each replacement whether the play then succeeded; None: that rollout was lost."""

    trajectory: str
    task: str
    agent: str
    position: int
    reason: str
    corrected: bool
    random_agent: str
    random_position: int
    flips: Mapping[Arm, bool | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlameProofs:
    """Proofs over the `failed` plays of a run. `shares` are of plays that flip, with 95 % intervals by task, `beyond`
    the difference of the blamed action to each other replacement; `left_out` counts plays without proof and rollouts
    that were lost, by reason."""

    folder: Path
    coach: str
    failed: int
    proofs: tuple[Proof, ...]
    shares: Mapping[Arm, Interval]
    corrected_share: Interval | None
    beyond: Mapping[Arm, Interval]
    left_out: Mapping[str, int]
    tasks: tuple[Task, ...]
    """Tasks of the plays that flipped at the blamed action, each once."""


def require_played(run: Path) -> None:
    """Raise RunError if a run was imported: whatever else is wrong with it, nothing can be played on in it."""
    with RunReader(run) as reader:
        if reader.settings.get("workflow.use") == IMPORT_RECIPE:
            raise RunError(
                f"{run} was imported from a log, so there is no team to play on with. Whom verdicts blame in it: "
                f"mappa observe {run}"
            )


async def prove_blame(
    composed: ComposedConfig,
    registry: Registry,
    run: Path,
    *,
    split: Split,
    limit: int | None = None,
    on_providers: Callable[[Sequence[Provider]], None] | None = None,
    on_start: Callable[[int], None] | None = None,
    on_play: Callable[[Trajectory], None] | None = None,
) -> BlameProofs:
    """Prove the blame of the failed plays of `run`, in a run folder of its own. `composed` is the run's config.

    Actions are sampled with the run's last checkpoint or, where it has none, its start models.

    Raises:
        RunError: the run holds no failed plays, or was imported, so that nothing can be played on; or a task has
            files, and the run's source has no such task.
        ConfigError, PluginError: the config cannot be built.
    """
    require_played(run)
    composed.require_installed()
    config = composed.config
    async with AsyncExitStack() as stack:
        reader = stack.enter_context(RunReader(run))
        checkpoint = max(reader.checkpoints.values(), default=None)
        loaded = None if checkpoint is None else checkpoint / POLICIES
        session = await stack.enter_async_context(
            open_session(composed, registry, learning=False, coach=False, loaded=loaded)
        )
        if loaded is not None:
            await session.engine.load(loaded)
        tasks = session.source_tasks()
        failed = [
            tasks.renew(play, split) for play in _select_failed(reader, run, split, session.workflow.metric, limit)
        ]
        folder = stack.enter_context(create_folder_for(composed, purpose="prove"))
        with storage_errors(folder.files):
            copy_archive(reader.files, folder.files)
        record_session_events(session, folder.store)
        bench = session.team.bench(folder.files)
        limits = judging_limits(config, session.team.ledger)
        named = await stack.enter_async_context(open_coach(config, registry, folder.path, bench))
        if on_providers is not None:
            on_providers((*session.providers, *named.coach.providers))
        if on_start is not None:
            on_start(len(ARMS) * len(failed))
        scenes = StoredScenes.of(session.workflow, bench, config, tasks)
        judge = TrajectoryJudge(named, scenes, limits)
        player = InterventionPlayer(session, folder, split, on_play)
        prover = _Prover(session.workflow.metric, player, Random(config.seed))
        proofs = await prover.prove(failed, await judge.judge(failed))
        return _summarize(folder.path, named.name, failed, proofs, prover.left_out)


def _select_failed(reader: RunReader, run: Path, split: Split, metric: str, limit: int | None) -> list[Trajectory]:
    """The plays that the team finished and that failed, the first ones by id."""
    rows = [row for row in reader.trajectories.where(split=split) if row.status == "done"]
    failed = sorted(row.id for row in rows if metric in row.outcome and row.outcome[metric] <= SUCCESS)
    if not failed:
        raise RunError(f"{run} holds no failed plays of the split {split}; choose another by --split")
    return [reader.trajectory(name) for name in failed[:limit]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """A failed play with its blame, and the three interventions on it, in the order of `ARMS`."""

    play: Trajectory
    blame: Blame
    random_place: int
    interventions: tuple[Intervention, ...]


class _Prover:
    def __init__(self, metric: str, player: InterventionPlayer, random: Random) -> None:
        self.left_out = Counter[str]()
        self._metric = metric
        self._player = player
        self._random = random

    async def prove(self, failed: Sequence[Trajectory], verdicts: Sequence[Sequence[Verdict]]) -> list[Proof]:
        cases = [case for pair in zip(failed, verdicts, strict=True) if (case := self._build_case(*pair)) is not None]
        played = iter(await self._player.play([one for case in cases for one in case.interventions]))
        return [self._to_proof(case, [next(played) for _ in ARMS]) for case in cases]

    def _build_case(self, play: Trajectory, verdicts: Sequence[Verdict]) -> _Case | None:
        blame = find_blame(play.steps, verdicts)
        if blame is None:
            self.left_out[NOBODY_BLAMED] += 1
            return None
        corrections = {step.position: verdict.correction for step, verdict in zip(play.steps, verdicts, strict=True)}
        numbers: defaultdict[int, Iterator[int]] = defaultdict(count)
        random_place = self._random.choice(play.steps).position
        chosen = (
            (blame.position, corrections[blame.position]),
            (random_place, corrections[random_place]),
            (blame.position, None),
        )
        interventions = tuple(
            Intervention(trajectory=play, position=position, number=next(numbers[position]), text=text)
            for position, text in chosen
        )
        return _Case(play=play, blame=blame, random_place=random_place, interventions=interventions)

    def _to_proof(self, case: _Case, played: Sequence[Trajectory]) -> Proof:
        flips = {arm: self._flips(one) for arm, one in zip(ARMS, played, strict=True)}
        self.left_out[LOST] += sum(flip is None for flip in flips.values())
        agent_at = {step.position: step.agent for step in case.play.steps}
        return Proof(
            trajectory=case.play.id,
            task=case.play.task.cluster or case.play.task.id,
            agent=case.blame.agent,
            position=case.blame.position,
            reason=case.blame.verdict.reasoning,
            corrected=case.interventions[0].text is not None,
            random_agent=agent_at[case.random_place],
            random_position=case.random_place,
            flips=flips,
        )

    def _flips(self, play: Trajectory) -> bool | None:
        """Whether the play succeeded; a play that the team could not finish did not, one without a value is lost."""
        if play.error is not None:
            return None if play.error.kind == ToolError.__name__ else False
        return play.outcome[self._metric] > SUCCESS if self._metric in play.outcome else None


def _summarize(
    folder: Path, coach: str, failed: Sequence[Trajectory], proofs: Sequence[Proof], left_out: Counter[str]
) -> BlameProofs:
    flipped = {one.trajectory for one in proofs if one.flips["blamed"]}
    shares = {arm: flip_share(proofs, arm) for arm in ARMS}
    beyond = {arm: gain_beyond(proofs, arm) for arm in ARMS if arm != "blamed"}
    return BlameProofs(
        folder=folder,
        coach=coach,
        failed=len(failed),
        proofs=tuple(proofs),
        shares={arm: share for arm, share in shares.items() if share is not None},
        corrected_share=flip_share([one for one in proofs if one.corrected], "blamed"),
        beyond={arm: gain for arm, gain in beyond.items() if gain is not None},
        left_out=dict(+left_out),
        tasks=tuple({one.task.id: one.task for one in failed if one.id in flipped}.values()),
    )


def flip_share(proofs: Sequence[Proof], arm: Arm) -> Interval | None:
    """Share of plays that flip, with its 95 % interval by task; None where none is known."""
    known = [one for one in proofs if one.flips[arm] is not None]
    return (
        share_interval([float(bool(one.flips[arm])) for one in known], [one.task for one in known]) if known else None
    )


def gain_beyond(proofs: Sequence[Proof], arm: Arm) -> Interval | None:
    """How much more often the blamed action's replacement flips a play than that of `arm`, with its 95 % interval by
    task; None where no play has both."""
    known = [one for one in proofs if one.flips["blamed"] is not None and one.flips[arm] is not None]
    if not known:
        return None
    before, after = ([float(bool(one.flips[which])) for one in known] for which in (arm, "blamed"))
    return paired_gain(before, after, [one.task for one in known])


def write_tasks(path: Path, tasks: Sequence[Task]) -> None:
    """Write tasks as the lines that `tasks.use=file` reads, with `tasks.options.stratum=stratum`. Raises
    RunError if a task has files, which such lines cannot hold, or the file cannot be written."""
    for task in tasks:
        if task.files:
            raise RunError(f"the task {task.id!r} has files, and {path} could not hold them: leave --save out")
    rows = (
        {**task.meta, "id": task.id, "prompt": task.prompt, "answer": task.reference, "stratum": task.stratum}
        for task in tasks
    )
    with storage_errors(path):
        write_atomic(path, b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
