"""Score a run's rollouts again with another coach, and see how the advantages would have changed.

One coach judges all agents; its verdicts are added beside the old ones, in phase `again`. In the comparison they stand
in for the live ones, or, where the run learned from hindsight alone, for those; the weights of `coach.reward`, the
shapers and the estimator are the run's. What a run does not keep is left out: the estimator begins every iteration
without a state and has no KL term, for want of the reference's log-probabilities, and bias is not corrected. Where no
policy learns, as in a run that was imported, there are verdicts and nothing to compare.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from secrets import token_hex
from typing import Any

from mappa_core.calls.spend import Ledger
from mappa_core.config.compose import Composed
from mappa_core.config.schema import EstimatorSection, RunConfig
from mappa_core.credit.experience import build
from mappa_core.credit.rewards import rewards
from mappa_core.errors import ConfigError, RunError
from mappa_core.evaluation.asking import Asking, ask
from mappa_core.evaluation.certificate import Counts, counts_of
from mappa_core.evaluation.labelled import rows_of
from mappa_core.experience import Advantages, Experience
from mappa_core.plugins import Registry
from mappa_core.protocols import Bench, Estimator, Provider, Shaper, Split, Workflow
from mappa_core.records import Phase, Scene, Trajectory, Verdict
from mappa_core.rollout.scenes import hindsight, scenes, told
from mappa_core.rollout.team import Judge
from mappa_core.session import build_estimator, check_prices, coaches_on_cassette, open_bench
from mappa_core.session.policies import policies_of, trained_policies
from mappa_core.store.database import Store
from mappa_core.store.folder import RunFolder
from mappa_core.store.reader import Reader, TrajectoryRow
from mappa_core.studies.advantages import Action, Change, actions_of, change_of, movers

KL = "kl_coef"
"""The option of an estimator that weighs its KL term."""
MOST = 10
"""Movers that are named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recoached:
    """What another coach would have changed. Its verdicts are those in phase `again` whose id ends in `name`; they
    stood in for those of phase `stands_for`, `corrected` of which were corrected for bias. `kl_left_out` are the
    estimators' KL coefficients that were set to 0, by key; `usd` is None where a price is unknown."""

    folder: Path
    name: str
    coach: str
    stands_for: Phase
    corrected: int
    kl_left_out: Mapping[str, float]
    counts: Counts
    usd: float | None
    overall: Change
    by_agent: Mapping[str, Change]
    by_iteration: Mapping[int, Change]
    movers: tuple[Action, ...]


async def recoach(
    composed: Composed,
    registry: Registry,
    path: Path,
    *,
    split: Split = "train",
    iteration: int | None = None,
    limit: int | None = None,
    announced: Callable[[Sequence[Provider]], None] | None = None,
    starting: Callable[[int], None] | None = None,
    judged: Callable[[Verdict], None] | None = None,
) -> Recoached:
    """Judge the rollouts of the run in `path` again with the coach that `composed`, the run's config but for that,
    names.

    Args:
        iteration: rollouts of this iteration alone, counted from 0.
        limit: trajectories at most, the first ones.
        announced: called with everyone to whom data will be sent; `starting` with the number of actions, both before
            the first; `judged` with every verdict.

    Raises:
        RunError: the folder is in use, no run, or holds no such rollouts.
        ConfigError, PluginError: the coach cannot be built, or the run learned from no verdicts.
    """
    config = composed.config
    async with AsyncExitStack() as stack:
        workflow: Workflow = registry.build("workflows", config.workflow.use, config.workflow.options)
        stack.push_async_callback(workflow.close)
        judge = Judge(name=config.coach.use, coach=registry.build("coaches", config.coach.use, config.coach.options))
        stack.push_async_callback(judge.coach.close)
        check_prices(config, judge.coach.providers)
        credit = _Credit.of(config, registry, workflow)
        scratch = None if config.store.scratch is None else Path(config.store.scratch)
        folder = stack.enter_context(RunFolder.open(path, scratch=scratch))
        folder.store.flush()
        reader = stack.enter_context(Reader(path))
        rows = _chosen(reader, path, split, iteration, limit)
        stack.enter_context(coaches_on_cassette([judge.coach], config.coach.cassette, path))
        bench = await stack.enter_async_context(open_bench(config, registry, folder.files))
        judge.coach.equip(bench)
        if announced is not None:
            announced(judge.coach.providers)
        if starting is not None:
            starting(sum(row.steps for row in rows))
        recoaching = _Recoaching(config, judge, workflow, credit, folder.store, bench, judged)
        folder.store.event("recoach", name=recoaching.name, split=split, coach=composed.document["coach"])
        for number, part in groupby(rows, key=lambda row: row.iteration):
            await recoaching.iteration(number, [reader.trajectory(row.id) for row in part])
        return recoaching.result(path)


def _chosen(reader: Reader, path: Path, split: Split, iteration: int | None, limit: int | None) -> list[TrajectoryRow]:
    """The trajectories that ended, in canonical order, hence by iteration."""
    rows = [row for row in rows_of(reader, split, iteration) if row.status != "open"]
    if not rows:
        of = "" if iteration is None else f" of iteration {iteration}"
        raise RunError(f"{path} holds no {split} rollouts{of} that ended")
    return sorted(rows, key=lambda row: (row.iteration, row.id))[:limit]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Credit:
    """From the verdicts of one iteration to advantages, as the run had it but for the KL term."""

    weights: Mapping[str, float]
    stands_for: Phase
    shapers: tuple[Shaper, ...]
    estimator: Estimator
    kl_left_out: Mapping[str, float]
    policy_of: Mapping[str, str]
    trained: frozenset[str]
    metric: str

    @classmethod
    def of(cls, config: RunConfig, registry: Registry, workflow: Workflow) -> _Credit:
        weights = config.coach.reward
        if not (weights.get("live") or weights.get("after")):
            raise ConfigError("coach.reward gives no verdict a weight: the run's rewards do not depend on its coach")
        policy_of = policies_of(config, tuple(workflow.agents))
        trained = trained_policies(config, policy_of.values())
        for use in (config.estimator.use, *(one.use for one in config.estimator.by_agent.values())):
            if registry.offer("estimators", use).values:
                raise ConfigError(f"the run's estimator {use} reads values, and a run keeps none to compare with")
        section, left_out = _without_kl(config.estimator)
        return cls(
            weights=weights,
            stands_for="live" if weights.get("live") else "after",
            shapers=tuple(registry.build("shapers", one.use, one.options) for one in config.shapers),
            estimator=build_estimator(replace(config, estimator=section), registry),
            kl_left_out=left_out,
            policy_of=policy_of,
            trained=trained,
            metric=workflow.metric,
        )

    def compared(self, number: int, before: Sequence[Trajectory], after: Sequence[Trajectory]) -> list[Action]:
        """The actions of one iteration under both verdicts; none where no policy learns."""
        return actions_of(number, self._advantages(before), self._advantages(after)) if self.trained else []

    def _advantages(self, trajectories: Sequence[Trajectory]) -> tuple[Experience, Advantages]:
        experience = build(
            trajectories,
            [rewards(trajectory, self.weights, self.shapers) for trajectory in trajectories],
            policies=self.policy_of,
            trained=self.trained,
            metric=self.metric,
        )
        advantages, _ = self.estimator(experience, {})
        return experience, advantages


def _without_kl(section: EstimatorSection) -> tuple[EstimatorSection, dict[str, float]]:
    """The run's estimators with their KL coefficients 0, and what these were, by key."""
    left_out: dict[str, float] = {}

    def options(of: Any, key: str) -> Any:
        coefficient = getattr(of, KL, None)
        if not coefficient:
            return of
        left_out[f"{key}.options.{KL}"] = coefficient
        return replace(of, **{KL: 0.0})

    by_agent = {
        agent: replace(use, options=options(use.options, f"estimator.by_agent.{agent}"))
        for agent, use in section.by_agent.items()
    }
    return replace(section, options=options(section.options, "estimator"), by_agent=by_agent), left_out


class _Recoaching:
    """Judges iteration after iteration, keeps every verdict as it comes, and compares."""

    def __init__(
        self,
        config: RunConfig,
        judge: Judge,
        workflow: Workflow,
        credit: _Credit,
        store: Store,
        bench: Bench,
        judged: Callable[[Verdict], None] | None,
    ) -> None:
        self.name = token_hex(4)
        self._section = config.coach
        self._judge = judge
        self._workflow = workflow
        self._bench = bench
        self._credit = credit
        self._store = store
        self._judged = judged
        self._asking = Asking(
            concurrency=config.sampling.concurrency,
            timeout_s=config.coach.timeout_s,
            ledger=Ledger(config.coach.spend_usd),
        )
        self._actions: list[Action] = []
        self._verdicts: list[Verdict] = []
        self._corrected = 0

    async def iteration(self, number: int, trajectories: Sequence[Trajectory]) -> None:
        in_hindsight = self._credit.stands_for == "after"
        given = await ask(
            self._judge,
            [await self._shown(trajectory) for trajectory in trajectories],
            self._asking,
            review=in_hindsight or self._judge.coach.by_trajectory,
            keep=self._keep,
        )
        changed = [self._changed(one, verdicts) for one, verdicts in zip(trajectories, given, strict=True)]
        self._actions += self._credit.compared(number, trajectories, changed)
        self._verdicts += [verdict for verdicts in given for verdict in verdicts]
        old = (verdict for one in trajectories for verdict in one.verdicts if verdict.phase == self._credit.stands_for)
        self._corrected += sum(verdict.raw_score is not None for verdict in old)

    async def _shown(self, trajectory: Trajectory) -> Sequence[Scene]:
        """What the coach judges; nobody looks back from an outcome that there is not."""
        if self._credit.stands_for == "live":
            look = scenes
        elif trajectory.error is None:
            look = hindsight
        else:
            return ()
        seen = look(trajectory, self._workflow.agents, reference_for=self._section.reference_for)
        return [await told(scene, self._workflow, self._bench) for scene in seen]

    def _keep(self, verdict: Verdict) -> Verdict:
        identity = f"{verdict.step}/{verdict.coach}/again/{self.name}"
        verdict = replace(verdict, id=identity, phase="again")
        self._store.verdict(verdict)
        if self._judged is not None:
            self._judged(verdict)
        return verdict

    def _changed(self, trajectory: Trajectory, verdicts: Sequence[Verdict]) -> Trajectory:
        """As if `verdicts` had been given in training; of several of a phase the last one counts."""
        stand_ins = (replace(verdict, phase=self._credit.stands_for) for verdict in verdicts)
        return replace(trajectory, verdicts=(*trajectory.verdicts, *stand_ins))

    def result(self, path: Path) -> Recoached:
        actions = self._actions
        agents = tuple(agent for agent in self._workflow.agents if any(one.agent == agent for one in actions))
        numbers = sorted({one.iteration for one in actions})
        return Recoached(
            folder=path,
            name=self.name,
            coach=self._judge.name,
            stands_for=self._credit.stands_for,
            corrected=self._corrected,
            kl_left_out=self._credit.kl_left_out,
            counts=counts_of(self._verdicts),
            usd=self._asking.ledger.spent,
            overall=change_of(actions),
            by_agent={agent: change_of([one for one in actions if one.agent == agent]) for agent in agents},
            by_iteration={number: change_of([one for one in actions if one.iteration == number]) for number in numbers},
            movers=movers(actions, MOST),
        )
