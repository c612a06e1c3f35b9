"""Plans a run from its recipe and optionally a recorded run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mappa.config.compose import ComposedConfig
from mappa.look.plan.changed_settings import affects_coaches, affects_work, find_changed
from mappa.look.plan.checkpoint_space import CheckpointSpace, plan_checkpoints
from mappa.look.plan.coach_calls import CoachAssignment, assign_coaches
from mappa.look.plan.duration import estimate_hours
from mappa.look.plan.history import read_history
from mappa.look.plan.memory import plan_memory
from mappa.look.plan.planned_work import plan_work
from mappa.look.plan.workload import PlannedAmount, Workload
from mappa.look.plan.workload_estimator import WorkloadEstimator
from mappa.session.config_problems import find_problems, overridden_settings
from mappa.session.credit import build_estimator
from mappa.session.policies import assign_policies, find_teachers, trained_policies
from mappa_core import PluginError, Role, Workflow
from mappa_core.config.schema import PolicySection, RunConfig
from mappa_core.engine import EnginePlan, Machine
from mappa_core.plugins import Registry

_TEACHES = "{} only teaches: its kv cache stays empty"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedAgent:
    """An agent and its policy: the kind of weights, and the model or API."""

    agent: str
    policy: str
    kind: str
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """The expected work of a recipe. `iteration`, `evaluation` and `run` are the work of one iteration, one evaluation
    and the whole run; `counterfactual` is the part of an iteration spent on counterfactual rollouts. `hours` is wall
    time, None if unknown; so is `checkpoints`. `notes` state what the figures are based on, and `problems` why a run
    could not start on this machine."""

    recipe: str
    agents: tuple[PlannedAgent, ...]
    coaches: tuple[CoachAssignment, ...]
    memory: EnginePlan
    iterations: int
    evaluations: int
    iteration: Workload
    counterfactual: Workload
    evaluation: Workload
    run: Workload
    hours: PlannedAmount | None
    checkpoints: CheckpointSpace | None
    notes: tuple[str, ...]
    problems: tuple[str, ...]


async def plan_run(
    composed: ComposedConfig, registry: Registry, machines: Sequence[Machine], *, previous: Path | None = None
) -> RunPlan:
    """Plan the run that `composed` describes; nothing is started, and no API key is needed.

    Args:
        machines: those of a cluster, for engines that run on one.
        previous: the folder of a run whose measurements are used; without it most figures are bounds or unknown.

    Raises:
        ConfigError, PluginError: the recipe cannot be built, or does not fit the resources.
        RunError: `previous` is not a run, or is one of another team.
    """
    config, problems = composed.config, _problems(composed, registry, machines)
    roles, max_turns = await _team(config, registry)
    policy_of = assign_policies(config, tuple(roles))
    sections = {agent: _section(name, config) for agent, name in policy_of.items()}
    trains = bool(trained_policies(config, policy_of.values()))
    changed = [] if previous is None else find_changed(previous, composed)
    differing = list(filter(affects_work, changed))
    estimator = WorkloadEstimator(
        config=config,
        sections=sections,
        max_turns=max_turns,
        coaches=await assign_coaches(config, registry, roles),
        history=None if previous is None else read_history(previous, tuple(roles)),
        coach_differs=any(map(affects_coaches, differing)),
    )
    played = [name for agent, name in policy_of.items() if sections[agent].kind != "api"]
    teachers = _find_unplayed_teachers(config, registry, tuple(roles), played) if trains else []
    work = plan_work(config, registry, estimator, trains=trains)
    hours, no_hours = estimate_hours(estimator.history, differing, work)
    memory = await plan_memory(
        config,
        registry,
        (*played, *teachers),
        machines,
        learning=trains,
        history=estimator.history,
        changed=changed,
    )
    checkpoints = plan_checkpoints(config, memory)
    no_space = () if checkpoints is None or machines else checkpoints.problems
    others = (*overridden_settings(composed, tuple(roles), teachers), *no_space, *map(_TEACHES.format, teachers))
    return RunPlan(
        recipe=composed.full_name,
        agents=tuple(_planned_agent(agent, policy_of[agent], section) for agent, section in sections.items()),
        coaches=tuple(estimator.coaches),
        memory=memory,
        iterations=work.iterations,
        evaluations=work.evaluations,
        iteration=work.iteration,
        counterfactual=work.counterfactual,
        evaluation=work.evaluation,
        run=work.run,
        hours=hours,
        checkpoints=checkpoints,
        notes=_notes(previous, differing, work.unknown, no_hours, *others),
        problems=problems,
    )


def _problems(composed: ComposedConfig, registry: Registry, machines: Sequence[Machine]) -> tuple[str, ...]:
    """Return why a run could not start on this machine; nothing is asked of one elsewhere. Raises PluginError with all
    of it where offers are not installed, without which nothing can be planned."""
    elsewhere = bool(machines) and not composed.missing_offers
    problems = () if elsewhere else tuple(find_problems(composed, registry))
    if composed.missing_offers:
        raise PluginError("\n".join(problems))
    return problems


async def _team(config: RunConfig, registry: Registry) -> tuple[Mapping[str, Role], Mapping[str, int]]:
    """Return the roles of a workflow's agents, and how often each acts at most, where the workflow bounds it."""
    workflow: Workflow = registry.build("workflows", config.workflow.use, config.workflow.options)
    try:
        return workflow.agents, workflow.max_turns
    finally:
        await workflow.close()


def _find_unplayed_teachers(
    config: RunConfig, registry: Registry, agents: Sequence[str], played: Sequence[str]
) -> list[str]:
    """Find the policies that the estimator learns from and no agent acts by; they are loaded, too."""
    teachers = find_teachers(config, agents, build_estimator(config, registry))
    return [name for name in teachers if name not in played]


def _section(name: str, config: RunConfig) -> PolicySection:
    return config.policies[name] if name in config.policies else config.policies["default"]


def _planned_agent(agent: str, policy: str, section: PolicySection) -> PlannedAgent:
    model = section.model or f"{section.use} {getattr(section.options, 'model', '')}".rstrip()
    return PlannedAgent(agent=agent, policy=policy, kind=section.kind, model=model)


def _notes(previous: Path | None, differing: Sequence[str], *unknown: str | None) -> tuple[str, ...]:
    notes = [why for why in unknown if why]
    if previous is None:
        notes.insert(
            0, "without --from RUN figures are bounds, and time is not known; with it they are what that run measured"
        )
    elif differing:
        notes.insert(0, f"{previous} had other settings, so what it measured may not hold: {', '.join(differing)}")
    return tuple(notes)
