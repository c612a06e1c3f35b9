"""Judges the recorded actions of a run with a coach and computes how the advantages would have changed.

One coach judges all agents; its verdicts are added beside the old ones, in phase `again`. In the comparison they
replace the live verdicts, or the hindsight ones if the run learned from these alone; the weights of `coach.reward`, the
shapers and the estimator are those of the run. A run lacks what three things need, so they are left
out: the estimator starts every iteration without state, it has no KL term (which needs log-probabilities of the
reference), and scores are not corrected for bias. If no policy learns, as in an imported run, there are verdicts but
nothing to compare.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from secrets import token_hex
from typing import Any, Literal

from mappa.config.compose import ComposedConfig
from mappa.look.advantage_comparison import (
    ActionAdvantages,
    AdvantageComparison,
    align_actions,
    compare_advantages,
    select_movers,
)
from mappa.look.coach_eval.batch_judge import JudgingLimits, judge_actions, judge_in_turn
from mappa.look.coach_eval.metrics import VerdictCounts, count_statuses
from mappa.look.importing.offers import ImportedWorkflow
from mappa.look.judging_record import record_judging
from mappa.rollout.named_coach import NamedCoach
from mappa.runs import RunReader, TrajectoryRow
from mappa.session.credit import build_estimator, build_experience_builder
from mappa.session.stored_runs import StoredScenes, open_coach, open_stored_scenes
from mappa.store.folder import RunFolder
from mappa_core import (
    NOBODY,
    Advantages,
    ConfigError,
    Estimator,
    Experience,
    RunError,
    Scene,
    Split,
    Trajectory,
    Verdict,
    Workflow,
)
from mappa_core.calls.spend_ledger import Ledger
from mappa_core.config.schema import RunConfig
from mappa_core.credit.build_experience import ExperienceBuilder
from mappa_core.plugins import Registry
from mappa_core.transport import Provider

LearnedPhase = Literal["live", "after"]
"""The phase of the verdicts that a run learned from."""
KL_OPTION = "kl_coef"
"""The option of an estimator that is the coefficient of its KL term."""
MAX_MOVERS = 10
"""Actions that are listed as having changed most."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class JudgedRun:
    """What another coach says of a run, and how the advantages change under it.

    Its verdicts are those in phase `again` whose id ends in `name`. They replace those of phase `stands_for`, of which
    `corrected` were corrected for bias. `kl_left_out` holds the estimators' KL coefficients that were set to 0, by
    key. `usd` is None if a price is unknown; `uncertain_calls` failed, or do not say what they took, and cost
    `uncertain_usd` at most. Verdicts blame somebody in `blaming` of the judged `rollouts`. `imported`: they come from
    a log.
    """

    folder: Path
    name: str
    coach: str
    stands_for: LearnedPhase
    corrected: int
    kl_left_out: Mapping[str, float]
    counts: VerdictCounts
    rollouts: int
    blaming: int
    usd: float | None
    uncertain_calls: int
    uncertain_usd: float
    overall: AdvantageComparison
    by_agent: Mapping[str, AdvantageComparison]
    by_iteration: Mapping[int, AdvantageComparison]
    movers: tuple[ActionAdvantages, ...]
    imported: bool

    def __repr__(self) -> str:
        """What `mappa judge` prints."""
        from mappa.look.cli.judge import show_judged
        from mappa.look.printed import as_printed

        return as_printed(lambda console: show_judged(console, self))

    def _repr_html_(self) -> str:
        from mappa.look.html import judged_html

        return judged_html(self)


async def judge_run(
    composed: ComposedConfig,
    registry: Registry,
    path: Path,
    *,
    split: Split = "train",
    iteration: int | None = None,
    limit: int | None = None,
    on_providers: Callable[[Sequence[Provider]], None] | None = None,
    on_start: Callable[[int], None] | None = None,
    on_verdict: Callable[[Verdict], None] | None = None,
) -> JudgedRun:
    """Judge the rollouts of the run in `path`. `composed` is the run's config with the coach in its section
    `coach`.

    Args:
        iteration: judge the rollouts of this iteration only, counted from 0.
        limit: the maximum number of trajectories; the first ones are taken.
        on_providers: called before the first verdict with all providers that data will be sent to, as is `on_start`
            with the number of actions.
        on_verdict: called with every verdict.

    Raises:
        RunError: the folder is in use, is not a run, or holds no such rollouts; or a task has files, and the run's
            source has no such task.
        ConfigError, PluginError: the coach cannot be built, or the run learned from no verdicts.
    """
    config = composed.config
    async with AsyncExitStack() as stack:
        reader = stack.enter_context(RunReader(path))
        scenes = await stack.enter_async_context(open_stored_scenes(config, registry, reader.files))
        credit = _AdvantageCalculator.from_config(config, registry, scenes.workflow)
        scratch = None if config.store.scratch is None else Path(config.store.scratch)
        folder = stack.enter_context(RunFolder.open(path, scratch=scratch))
        folder.store.flush()
        rows = _select_rows(reader, path, split, iteration, limit)
        # All of them before the first verdict, which may cost: a task that is not to be had stops everything.
        tasks = {row.id: scenes.find_task(reader.task(row.id), row.split) for row in rows}
        ledger = Ledger(config.coach.spend_usd)
        judge = await stack.enter_async_context(open_coach(config, registry, path, scenes.bench))
        if on_providers is not None:
            on_providers(judge.coach.providers)
        if on_start is not None:
            on_start(sum(row.steps for row in rows))
        limits = JudgingLimits(concurrency=config.sampling.concurrency, timeout_s=config.coach.timeout_s, ledger=ledger)
        judging = _RunJudge(judge, scenes, credit, folder, limits, on_verdict)
        record_judging(folder.store, registry, composed, name=judging.name, split=split)
        passes = (
            judging.judge_iteration(number, [replace(reader.trajectory(row.id), task=tasks[row.id]) for row in part])
            for number, part in groupby(rows, key=lambda row: row.iteration)
        )
        await judge_in_turn([judge], passes)
        return judging.result()


def _select_rows(
    reader: RunReader, path: Path, split: Split, iteration: int | None, limit: int | None
) -> list[TrajectoryRow]:
    """The ended trajectories in canonical order, which sorts by iteration first."""
    rows = [row for row in reader.trajectories.where(split=split, iteration=iteration) if row.status != "open"]
    if not rows:
        of = "" if iteration is None else f" of iteration {iteration}"
        other = "eval" if split == "train" else "train"
        instead = f"; of {other} it does: --split {other}" if reader.counts(other) else ""
        raise RunError(f"{path} holds no {split} rollouts{of} that ended{instead}")
    return sorted(rows, key=lambda row: (row.iteration, row.id))[:limit]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _AdvantageCalculator:
    """Computes the advantages of an iteration from its verdicts as the run did, but without the KL term."""

    stands_for: LearnedPhase
    experience: ExperienceBuilder
    estimator: Estimator
    kl_left_out: Mapping[str, float]

    @classmethod
    def from_config(cls, config: RunConfig, registry: Registry, workflow: Workflow) -> _AdvantageCalculator:
        weights = config.coach.reward
        if not (weights.get("live") or weights.get("after")):
            raise ConfigError("coach.reward gives no verdict a weight: the run's rewards do not depend on its coach")
        for use in (config.estimator.use, *(one.use for one in config.estimator.by_agent.values())):
            if registry.offer("estimators", use).values:
                raise ConfigError(f"the run's estimator {use} reads values, and a run keeps none to compare with")
        without, left_out = _without_kl(config)
        return cls(
            stands_for="live" if weights.get("live") else "after",
            experience=build_experience_builder(config, registry, workflow),
            estimator=build_estimator(without, registry),
            kl_left_out=left_out,
        )

    def compare(self, number: int, before: Sequence[Trajectory], after: Sequence[Trajectory]) -> list[ActionAdvantages]:
        """The actions of one iteration under both sets of verdicts; none if no policy learns."""
        if not self.experience.trained:
            return []
        return align_actions(number, self._advantages(before), self._advantages(after))

    def _advantages(self, trajectories: Sequence[Trajectory]) -> tuple[Experience, Advantages]:
        experience = self.experience.build(trajectories)
        advantages, _ = self.estimator(experience, {})
        return experience, advantages


def _without_kl(config: RunConfig) -> tuple[RunConfig, dict[str, float]]:
    """The config with the KL coefficients of its estimators set to 0, and the original coefficients by key."""
    section = config.estimator
    left_out: dict[str, float] = {}

    def options(of: Any, key: str) -> Any:
        coefficient = getattr(of, KL_OPTION, None)
        if not coefficient:
            return of
        left_out[f"{key}.options.{KL_OPTION}"] = coefficient
        return replace(of, **{KL_OPTION: 0.0})

    by_agent = {
        agent: replace(use, options=options(use.options, f"estimator.by_agent.{agent}"))
        for agent, use in section.by_agent.items()
    }
    section = replace(section, options=options(section.options, "estimator"), by_agent=by_agent)
    return replace(config, estimator=section), left_out


class _RunJudge:
    """Judges one iteration after another, stores every verdict as it arrives, and compares the advantages."""

    def __init__(
        self,
        judge: NamedCoach,
        scenes: StoredScenes,
        credit: _AdvantageCalculator,
        folder: RunFolder,
        limits: JudgingLimits,
        on_verdict: Callable[[Verdict], None] | None,
    ) -> None:
        self.name = token_hex(4)
        self._judge = judge
        self._stored = scenes
        self._credit = credit
        self._folder = folder
        self._on_verdict = on_verdict
        self._asking = limits
        self._actions: list[ActionAdvantages] = []
        self._verdicts: list[Verdict] = []
        self._corrected = 0

    async def judge_iteration(self, number: int, trajectories: Sequence[Trajectory]) -> None:
        in_hindsight = self._credit.stands_for == "after"
        given = await judge_actions(
            self._judge,
            [await self._scenes(trajectory) for trajectory in trajectories],
            self._asking,
            review=in_hindsight or self._judge.coach.by_trajectory,
            finalize=self._store_verdict,
        )
        changed = [self._with_verdicts(one, verdicts) for one, verdicts in zip(trajectories, given, strict=True)]
        self._actions += self._credit.compare(number, trajectories, changed)
        self._verdicts += [verdict for verdicts in given for verdict in verdicts]
        old = (verdict for one in trajectories for verdict in one.verdicts if verdict.phase == self._credit.stands_for)
        self._corrected += sum(verdict.raw_score is not None for verdict in old)

    async def _scenes(self, trajectory: Trajectory) -> Sequence[Scene]:
        """The scenes that the coach judges; a trajectory without an outcome has none in hindsight."""
        stored = self._stored
        seen = stored.live(trajectory) if self._credit.stands_for == "live" else stored.hindsight(trajectory)
        return [await stored.with_truth(scene) for scene in seen]

    def _store_verdict(self, verdict: Verdict) -> Verdict:
        identity = f"{verdict.step}/{verdict.coach}/again/{self.name}"
        verdict = replace(verdict, id=identity, phase="again")
        self._folder.store.record_verdict(verdict)
        if self._on_verdict is not None:
            self._on_verdict(verdict)
        return verdict

    def _with_verdicts(self, trajectory: Trajectory, verdicts: Sequence[Verdict]) -> Trajectory:
        """The trajectory as if `verdicts` had been given in training; of several in a phase the last one counts."""
        stand_ins = (replace(verdict, phase=self._credit.stands_for) for verdict in verdicts)
        return replace(trajectory, verdicts=(*trajectory.verdicts, *stand_ins))

    def result(self) -> JudgedRun:
        actions = self._actions
        agents = tuple(agent for agent in self._stored.workflow.agents if any(one.agent == agent for one in actions))
        numbers = sorted({one.iteration for one in actions})
        return JudgedRun(
            folder=self._folder.path,
            name=self.name,
            coach=self._judge.name,
            stands_for=self._credit.stands_for,
            corrected=self._corrected,
            kl_left_out=self._credit.kl_left_out,
            counts=count_statuses(self._verdicts),
            rollouts=len({_rollout(one) for one in self._verdicts}),
            blaming=len({_rollout(one) for one in self._verdicts if one.blame not in (None, NOBODY)}),
            usd=self._asking.ledger.total_usd,
            uncertain_calls=self._asking.ledger.uncertain_calls,
            uncertain_usd=self._asking.ledger.uncertain_usd,
            overall=compare_advantages(actions),
            by_agent={agent: compare_advantages([one for one in actions if one.agent == agent]) for agent in agents},
            by_iteration={
                number: compare_advantages([one for one in actions if one.iteration == number]) for number in numbers
            },
            movers=select_movers(actions, MAX_MOVERS),
            imported=isinstance(self._stored.workflow, ImportedWorkflow),
        )


def _rollout(verdict: Verdict) -> str:
    return verdict.step.rpartition("/")[0]
