"""Trials of fixes within a budget of rollouts: prompts are searched for and agents trained shortly, then all fixes race
on held-out tasks."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mappa.runs import RunFolder
from mappa.sessions import (
    ComposedConfig,
    Job,
    Ledger,
    RolloutCollector,
    assign_policies,
    open_session,
    record_session_events,
)
from mappa.statistics import Interval
from mappa_core import ConfigError, GuardStop, Registry, Task, Trajectory, Usage
from mappa_core.transport import CallError
from mappa_gepa.advise.evidence import TEAM_EVENT, mean_usd
from mappa_gepa.advise.fixes import SECONDS_PER_HOUR, Cost, Fix
from mappa_gepa.advise.race import MIN_TASKS, RacePlan, gain_at, race_cost
from mappa_gepa.advise.short_training import CHECKS, rollouts_per_iteration, train_shortly
from mappa_gepa.improve import POLICIES, Watcher, improve
from mappa_gepa.options import ImproveOptions
from mappa_gepa.rollouts import metric_value
from mappa_gepa.stored_search import CONFIG_NAME, StoredSearch, agent_word

CHOOSING_TASKS, REPORT_TASKS = 16, 2
"""Tasks of a search for one prompt. Its own report is as small as can be, as the race reports."""
MIN_SEARCH, MIN_ITERATIONS = 60, 4
"""Rollouts of a search for a prompt, and iterations of a training, below which neither tells anything."""
MAX_SPARE = 400
"""Rollouts that a search or a training gets beyond the least."""

Variant = Callable[..., ComposedConfig]
"""Composes the run's config with further `key=value` words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOptions:
    """A budget of `rollouts` for all trials, the provider that proposes prompts, None: none are tried, and whether
    agents are trained shortly."""

    rollouts: int
    train: bool = False
    proposer: str | None = None
    proposer_settings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What trying a fix came to. `gain` over the team as it is, on `tasks` held-out ones; None if the search for a
    prompt kept none, so that there was nothing to race. `stopped`: at a look before the end, as others were ahead.
    `settings`: a config file with the fix. The team with the fix plays by the run's config with `words`, and with the
    `weights` of a checkpoint, None: with its models."""

    fix: Fix
    gain: Interval | None
    tasks: int
    stopped: bool
    cost: Cost
    usd_per_rollout: float | None
    settings: Path | None
    words: tuple[str, ...] = ()
    weights: Path | None = None


@dataclass(slots=True, kw_only=True, eq=False)
class _Team:
    """The team as it is, or with a fix, in the race. `values` is the metric by task, `gain` that of `paired` tasks."""

    number: int
    words: tuple[str, ...]
    weights: Path | None
    values: dict[str, float] = field(default_factory=dict)
    played: list[Trajectory] = field(default_factory=list)
    seconds: float = 0.0
    stopped: bool = False
    gain: Interval | None = None
    paired: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """What a search for a prompt or a short training spent, and where the fix lies; None if it found none."""

    words: tuple[str, ...]
    weights: Path | None
    settings: Path | None
    cost: Cost


class Trials:
    """Tries fixes with the teams that `variant` composes, which play with the `weights` of a checkpoint."""

    def __init__(
        self,
        variant: Variant,
        registry: Registry,
        options: TrialOptions,
        *,
        agents: Sequence[str],
        weights: Path | None,
        watcher: Watcher,
    ) -> None:
        self._agents = agents
        self._variant = variant
        self._registry = registry
        self._options = options
        self._weights = weights
        self._watcher = watcher
        self._rollouts = 0
        self._usd: float | None = 0.0
        self._clusters: dict[str, str] = {}

    @property
    def rollouts(self) -> int:
        """Rollouts so far."""
        return self._rollouts

    @property
    def usd(self) -> float | None:
        """US dollars so far, proposals included; None if a price is unknown."""
        return self._usd

    async def run(self, sought: Sequence[Fix], given: Sequence[Fix]) -> tuple[Trial, ...]:
        """Try as many of `sought`, prompts and trainings, most promising first, as the budget is enough for, and all of
        `given`, which are only played.

        Raises:
            ConfigError, PluginError: the config cannot be built, or the budget is too small.
            GuardStop: the spending cap is reached, or a provider or a tool failed.
        """
        composed = self._variant()
        composed.require_installed()
        tasks = await self._held_out(composed)
        least = {fix: self._least(fix, composed) for fix in sought}
        chosen = self._affordable(least, len(given), len(tasks))
        spare = self._spare([least[fix] for fix in chosen], len(given), len(tasks))
        found = {fix: await self._find(fix, least[fix] + spare) for fix in chosen}
        variants = {fix: (one.words, one.weights) for fix, one in found.items() if one.settings is not None}
        variants |= {fix: (self._words_of(fix, composed), self._weights) for fix in given}
        raced = await self._race(composed, variants, tasks) if variants else {}
        return tuple(self._trial(fix, raced.get(fix), found.get(fix)) for fix in (*chosen, *given))

    def _least(self, fix: Fix, composed: ComposedConfig) -> int:
        """Rollouts below which looking for a fix tells nothing."""
        return MIN_SEARCH if fix.kind == "prompt" else CHECKS + MIN_ITERATIONS * rollouts_per_iteration(composed)

    def _words_of(self, fix: Fix, composed: ComposedConfig) -> tuple[str, ...]:
        """Settings of a fix that has only to be played."""
        if fix.other is None:
            assert fix.policy is not None  # what is not swapped is given a policy
            return (agent_word(fix.agent, "policy", fix.policy),)
        policy_of = assign_policies(composed.config, self._agents)
        return tuple(
            agent_word(one, "policy", policy_of[other])
            for one, other in ((fix.agent, fix.other), (fix.other, fix.agent))
        )

    def _affordable(self, least: Mapping[Fix, int], given: int, tasks: int) -> tuple[Fix, ...]:
        """The first fixes that the budget is enough for. Raises ConfigError if it is not enough for any trial."""
        fewest, fixes = min(MIN_TASKS, tasks), tuple(least)

        def needed(count: int) -> int:
            return sum(least[fix] for fix in fixes[:count]) + race_cost(fewest, count + given)

        for count in range(len(fixes), -1, -1):
            if needed(count) <= self._options.rollouts and count + given:
                return fixes[:count]
        raise ConfigError(
            f"--rollouts {self._options.rollouts}: too few to tell anything: what is to be tried, on {fewest} held-out "
            f"tasks, takes {needed(0 if given else 1)}; give more, or name fewer models and swaps"
        )

    def _spare(self, least: Sequence[int], given: int, tasks: int) -> int:
        """Further rollouts of each search or training: half of what is left beyond the least for everything."""
        if not least:
            return 0
        spare = self._options.rollouts - sum(least) - race_cost(min(MIN_TASKS, tasks), len(least) + given)
        return min(MAX_SPARE, spare // (2 * len(least)))

    async def _held_out(self, composed: ComposedConfig) -> tuple[Task, ...]:
        """The run's held-out tasks, in an order that does not depend on their source."""
        async with open_session(composed, self._registry, learning=False, coach=False) as session:
            tasks = sorted(session.held_out().report, key=lambda task: hashlib.sha256(task.id.encode()).digest())
        for task in tasks:
            self._clusters[task.id] = f"task {task.id}" if task.cluster is None else f"cluster {task.cluster}"
        return tuple(tasks)

    async def _find(self, fix: Fix, size: int) -> _Found:
        return await (self._search(fix, size) if fix.kind == "prompt" else self._train(fix, size))

    async def _train(self, fix: Fix, size: int) -> _Found:
        """Train one agent, in a run folder of its own."""
        start = time.perf_counter()
        found = await train_shortly(
            fix, self._capped, self._registry, agents=self._agents, weights=self._weights, rollouts=size,
            on_providers=self._watcher.on_providers, on_rollout=self._watcher.on_rollout,
        )  # fmt: skip
        self._spend(found.rollouts, found.usd)
        hours = (time.perf_counter() - start) / SECONDS_PER_HOUR
        cost = Cost(rollouts=found.rollouts, usd=found.usd, hours=hours, measured=True)
        return _Found(words=found.words, weights=found.weights, settings=found.settings, cost=cost)

    async def _search(self, fix: Fix, size: int) -> _Found:
        """Search for a prompt of one agent, in a run folder of its own."""
        assert self._options.proposer is not None  # fixes of prompts are tried only with one
        options = ImproveOptions(
            proposer=self._options.proposer, proposer_settings=self._options.proposer_settings, rollouts=size,
            choose=CHOOSING_TASKS, report=REPORT_TASKS, agents=(fix.agent,),
        )  # fmt: skip
        search = StoredSearch(options=options, weights=None if self._weights is None else str(self._weights))
        start = time.perf_counter()
        found = await improve(self._capped(), self._registry, search, watcher=self._watcher)
        self._spend(found.rollouts, found.usd)
        hours = (time.perf_counter() - start) / SECONDS_PER_HOUR
        return _Found(
            words=tuple(agent_word(name, "prompt", found.prompts[name]) for name in found.changed),
            weights=self._weights,
            settings=found.folder / CONFIG_NAME if found.changed else None,
            cost=Cost(rollouts=found.rollouts, usd=found.usd, hours=hours, measured=True),
        )

    def _capped(self, *words: str) -> ComposedConfig:
        """The run's config with further words and what is left of its cap on spending."""
        cap = self._variant().config.coach.spend_usd
        left = () if cap is None else (f"coach.spend_usd={cap - (self._usd or 0.0)}",)
        return self._variant(*left, *words)

    async def _race(
        self,
        composed: ComposedConfig,
        variants: Mapping[Fix, tuple[tuple[str, ...], Path | None]],
        tasks: Sequence[Task],
    ) -> dict[Fix, _Team]:
        """Play the team as it is and with each fix, on more tasks at each look; fixes that are behind stop."""
        plan = RacePlan.within(self._options.rollouts - self._rollouts, len(variants), len(tasks))
        origin = _Team(number=0, words=(), weights=self._weights)
        teams = {
            fix: _Team(number=number, words=words, weights=weights)
            for number, (fix, (words, weights)) in enumerate(variants.items(), 1)
        }
        run, before = composed.config.run, 0
        folder = RunFolder.create(
            Path(run.root),
            None,
            plugin=composed.plugin,
            recipe=f"{composed.recipe}-advise",
            config=composed.to_yaml(),
            code=composed.code,
        )
        with folder:
            for look, after in enumerate(plan.looks):
                running = {fix: team for fix, team in teams.items() if not team.stopped}
                for team in (origin, *running.values()) if running and before < after else ():
                    await self._play(team, tasks[before:after], folder)
                for team in running.values():
                    team.gain = gain_at(origin.values, team.values, self._clusters, plan.alpha(look))
                    team.paired = len(origin.values.keys() & team.values.keys())
                if look < len(plan.looks) - 1:
                    _stop_those_behind(running, plan, look)
                before = after
        return teams

    async def _play(self, team: _Team, tasks: Sequence[Task], folder: RunFolder) -> None:
        start, composed = time.perf_counter(), self._variant(*team.words)
        loaded = None if team.weights is None else team.weights / POLICIES
        async with open_session(composed, self._registry, learning=False, coach=False, loaded=loaded) as session:
            if loaded is not None:
                await session.engine.load(loaded)
            if not team.played:
                self._watcher.on_providers(session.providers)
                record_session_events(session, folder.store)
                folder.store.record_event(TEAM_EVENT, number=team.number, settings=list(team.words))
            session.team.ledger.add(Usage(calls=1, usd=self._usd))
            collector = RolloutCollector(
                session.team_for("eval"),
                recorder=folder.store,
                archive=folder.files,
                concurrency=session.config.sampling.concurrency,
                waves=session.deterministic,
                on_finish=self._watcher.on_rollout,
            )
            jobs = [Job(task=task, split="eval", iteration=team.number, sample=0) for task in tasks]
            played = await collector.collect(jobs)
            _check_ledger(session.team.ledger)
        usd = mean_usd(played)
        self._spend(len(played), None if usd is None else usd * len(played))
        team.played += played
        team.seconds += time.perf_counter() - start
        values = {one.task.id: metric_value(one, session.workflow.metric) for one in played}
        known = {task: value for task, value in values.items() if value is not None}
        if not known:
            failure = played[0].error
            reason = "" if failure is None else f": {failure.kind}: {failure.message}"
            raise GuardStop(f"all {len(played)} rollouts were lost, which is no fault of the team{reason}")
        team.values |= known

    def _spend(self, rollouts: int, usd: float | None) -> None:
        self._rollouts += rollouts
        self._usd = None if usd is None or self._usd is None else self._usd + usd

    def _trial(self, fix: Fix, team: _Team | None, found: _Found | None) -> Trial:
        cost = found.cost if found is not None else Cost(rollouts=0, usd=0.0, hours=0.0, measured=True)
        if team is None:
            return Trial(fix=fix, gain=None, tasks=0, stopped=False, cost=cost, usd_per_rollout=None, settings=None)
        usd = mean_usd(team.played)
        raced = Cost(
            rollouts=cost.rollouts + len(team.played),
            usd=None if usd is None or cost.usd is None else cost.usd + usd * len(team.played),
            hours=(cost.hours or 0.0) + team.seconds / SECONDS_PER_HOUR,
            measured=True,
        )
        settings = None if found is None else found.settings
        return Trial(
            fix=fix, gain=team.gain, tasks=team.paired, stopped=team.stopped, cost=raced, usd_per_rollout=usd,
            settings=settings, words=team.words, weights=team.weights,
        )  # fmt: skip


def _stop_those_behind(running: Mapping[Fix, _Team], plan: RacePlan, look: int) -> None:
    survivors = plan.survivors({fix: team.gain for fix, team in running.items() if team.gain is not None}, look)
    for fix, team in running.items():
        team.stopped = fix not in survivors


def _check_ledger(ledger: Ledger) -> None:
    """Raise GuardStop if the run's spending cap is reached."""
    try:
        ledger.check()
    except CallError as error:
        raise GuardStop(f"{error}; trials that were cut short tell nothing: start again with a higher cap") from error
