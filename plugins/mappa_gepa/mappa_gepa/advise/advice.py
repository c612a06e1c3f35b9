"""Advice on a team: its fixes in order, and which one to make, or that the evidence decides for none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mappa.runs import RunReader
from mappa.sessions import RunConfig, assign_policies, trained_policies
from mappa.statistics import Interval
from mappa_core import ConfigError, Registry, Workflow
from mappa_gepa.advise.evidence import Evidence, read_evidence
from mappa_gepa.advise.fixes import TRAINED, Cost, Fix, FixKind, estimate_cost, list_fixes
from mappa_gepa.advise.trials import Trial, TrialOptions, Trials, Variant
from mappa_gepa.improve import Watcher

Choice = FixKind | Literal["nothing", "tools or tasks", "cannot be told"]
NEGLIGIBLE = 0.02
"""A gain in the metric that makes no difference."""
CHEAPEST_FIRST: tuple[FixKind, ...] = ("swap", "prompt", "sft", "adapter", "train", "model")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedFix:
    """A fix with its trial; None: it was not tried, so that its gain is unknown."""

    fix: Fix
    cost: Cost
    trial: Trial | None

    @property
    def gain(self) -> Interval | None:
        """Gain over the team as it is, on held-out tasks; None if it is not known."""
        return None if self.trial is None else self.trial.gain

    @property
    def gains(self) -> bool:
        """Whether it gains for certain: the interval of a trial that went to its end lies above 0."""
        gain = self.gain
        return self.trial is not None and not self.trial.stopped and gain is not None and (gain.low or 0.0) > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What to do with the team of `run`: the `choice`, and of a prompt or a model the `chosen` fix.

    `fixes` are in order: those that gain for certain by their gain, then the others that were tried, then the rest by
    headroom. `rollouts` and `usd` were spent on trials; `usd` is None if a price is unknown. `trained` holds the
    sections of the config whose policies play with the weights of the run's last checkpoint.
    """

    run: Path
    evidence: Evidence
    fixes: tuple[RankedFix, ...]
    choice: Choice
    chosen: RankedFix | None
    trained: tuple[str, ...]
    rollouts: int
    usd: float | None


async def advise(
    run: Path,
    variant: Variant,
    registry: Registry,
    *,
    agents: Sequence[str],
    models: Sequence[tuple[str, str]],
    swaps: Sequence[tuple[str, str]] = (),
    options: TrialOptions,
    watcher: Watcher,
) -> Advice:
    """Advise on the team of `run`. `variant` composes its config with further words. Only `agents` are considered, all
    if there are none named; `models` are pairs of agent and policy, `swaps` pairs of agents.

    Raises:
        RunError: the run holds no verdicts or no results.
        ConfigError, PluginError: an agent or policy is unknown, or the budget is too small.
        GuardStop: the spending cap is reached, or a provider or a tool failed.
    """
    config = variant().config
    workflow: Workflow = registry.build("workflows", config.workflow.use, config.workflow.options)
    try:
        _check_agents((*agents, *(agent for agent, _ in models), *(one for pair in swaps for one in pair)), workflow)
        evidence = read_evidence(run, metric=workflow.metric, agents=tuple(workflow.agents))
        fixes = list_fixes(config, workflow, models, swaps, evidence.corrected)
    finally:
        await workflow.close()
    fixes = tuple(fix for fix in fixes if not agents or fix.agent in agents)
    with RunReader(run) as reader:
        weights = max(reader.checkpoints.items(), default=(0, None))[1]
    weights = None if weights is None else weights.resolve()
    team = tuple(workflow.agents)
    trials = Trials(variant, registry, options, agents=team, weights=weights, watcher=watcher)
    sought, given = _worth_trying(fixes, evidence, options)
    tried = await trials.run(sought, given) if sought or given else ()
    ranked = _rank(fixes, tried, config, evidence)
    choice, chosen = choose(ranked, evidence)
    return Advice(
        run=run, evidence=evidence, fixes=ranked, choice=choice, chosen=chosen,
        trained=() if weights is None else _trained_sections(config, tuple(workflow.agents)),
        rollouts=trials.rollouts, usd=trials.usd,
    )  # fmt: skip


def choose(fixes: Sequence[RankedFix], evidence: Evidence) -> tuple[Choice, RankedFix | None]:
    """Choose the fix with the greatest gain of those that gain for certain, and of those that gain as much but for
    `NEGLIGIBLE` the cheapest. Headroom alone chooses no fix: it bounds what one could gain. Where it is negligible for
    every agent, or nobody is blamed for certainly more than any agent is, it says that no agent is to be changed."""
    winners = [one for one in fixes if one.gains]
    if winners:
        best = max(_mean_gain(one) for one in winners)
        equal = [one for one in winners if _mean_gain(one) >= best - NEGLIGIBLE]
        chosen = min(equal, key=lambda one: (CHEAPEST_FIRST.index(one.fix.kind), -_mean_gain(one)))
        return chosen.fix.kind, chosen
    headrooms = list(evidence.headroom.values())
    if (evidence.unblamed.low or 0.0) > max(one.mean for one in headrooms):
        return "tools or tasks", None
    is_negligible = all(one.high is not None and one.high < NEGLIGIBLE for one in headrooms)
    if is_negligible or any(one.trial is not None for one in fixes) or not any(one.mean for one in headrooms):
        return "nothing", None
    return "cannot be told", None


def _check_agents(agents: Sequence[str], workflow: Workflow) -> None:
    for agent in agents:
        if agent not in workflow.agents:
            raise ConfigError(f"{agent!r} is no agent of this team, which has {', '.join(workflow.agents)}")


def _trained_sections(config: RunConfig, agents: Sequence[str]) -> tuple[str, ...]:
    names = trained_policies(config, assign_policies(config, agents).values())
    return tuple(sorted({name if name in config.policies else "default" for name in names}))


def _worth_trying(
    fixes: Sequence[Fix], evidence: Evidence, options: TrialOptions
) -> tuple[tuple[Fix, ...], tuple[Fix, ...]]:
    """Prompts, where there is a proposer, and trainings, where they are wanted, of agents that are blamed at all, most
    blamed first; and all models and swaps."""
    if not options.rollouts:
        return (), ()
    headroom = evidence.headroom
    kinds = (*(("prompt",) if options.proposer else ()), *(TRAINED if options.train else ()))
    sought = [fix for fix in fixes if fix.kind in kinds and headroom[fix.agent].mean > 0]
    sought.sort(key=lambda fix: -headroom[fix.agent].mean)
    return tuple(sought), tuple(fix for fix in fixes if fix.kind in ("model", "swap"))


def _rank(fixes: Sequence[Fix], tried: Sequence[Trial], config: RunConfig, evidence: Evidence) -> tuple[RankedFix, ...]:
    trials = {trial.fix: trial for trial in tried}
    ranked = [
        RankedFix(
            fix=fix,
            cost=trials[fix].cost if fix in trials else estimate_cost(fix, config, evidence),
            trial=trials.get(fix),
        )
        for fix in fixes
    ]
    ranked.sort(
        key=lambda one: (
            not one.gains,
            one.gain is None,
            one.trial is None,
            -_mean_gain(one) if one.gain is not None else -evidence.headroom[one.fix.agent].mean,
        )
    )
    return tuple(ranked)


def _mean_gain(one: RankedFix) -> float:
    assert one.gain is not None
    return one.gain.mean
