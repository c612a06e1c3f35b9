"""Plans a run from its recipe and optionally a recorded run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mappa.config.compose import ComposedConfig, read_stored
from mappa.config.resume_diff import diff_settings
from mappa.look.plan.checkpoint_space import CheckpointSpace, plan_checkpoints
from mappa.look.plan.coach_calls import CoachAssignment, assign_coaches
from mappa.look.plan.history import RunHistory, SplitHistory, read_history
from mappa.look.plan.workload import PlannedAmount, Workload, multiply_amounts
from mappa.look.plan.workload_estimator import WorkloadEstimator
from mappa.session.config_problems import find_problems, overridden_settings
from mappa.session.credit import build_estimator
from mappa.session.expected_actions import ActionTokens, add_expected_actions, expect_actions
from mappa.session.policies import assign_policies, build_policy_specs, find_teachers, trained_policies
from mappa.store.folder import CONFIG
from mappa_core import ConfigError, PluginError, Role, Split, TaskError, TaskSource, Workflow
from mappa_core.config.schema import PolicySection, RunConfig
from mappa_core.engine import Engine, EnginePlan, Machine
from mappa_core.plugins import Registry

_FREE_COACH_KEYS = ("price", "limits")
_BATCH_KEY = ".batch_api"
"""Settings that affect how long replies take and what they cost, and nothing else."""
_MACHINE_KEYS = ("engine.", "policies.")
_TEAM_KEYS = (
    "tasks.", "workflow.", "agents.", "sampling.max_tokens", "sampling.temperature", "train.dynamic_sampling",
)  # fmt: skip
"""Settings that affect the actions of agents, or how many are replaced, in addition to those of the machine."""
_MEMORY_KEYS = (
    *_MACHINE_KEYS, *_TEAM_KEYS, "sampling.concurrency", "train.prompts", "train.samples", "train.micro_tokens",
    "train.minibatch_rows", "train.entropy_coef", "train.supervised", "loss.", "estimator.",
)  # fmt: skip
"""Settings that affect the peak of memory."""
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
    trained = trained_policies(config, policy_of.values())
    sections = {agent: _section(name, config) for agent, name in policy_of.items()}
    changed = [] if previous is None else _changed_settings(previous, composed)
    differing = list(filter(_matters, changed))
    estimator = WorkloadEstimator(
        config=config,
        sections=sections,
        max_turns=max_turns,
        coaches=await assign_coaches(config, registry, roles),
        history=None if previous is None else read_history(previous, tuple(roles)),
        coach_differs=any(key.startswith("coach.") and _BATCH_KEY not in key for key in differing),
    )
    played = [name for agent, name in policy_of.items() if sections[agent].kind != "api"]
    teachers = _find_unplayed_teachers(config, registry, tuple(roles), played) if trained else []
    tasks, no_tasks = _count_held_out_tasks(config, registry)
    evaluations = _count_evaluations(config) if trained else 1
    whole = _full_evaluations(config, evaluations)
    iterations, rollouts = config.train.iterations if trained else 0, config.train.prompts * config.train.samples
    played_rollouts = _with_replaced(rollouts, config, estimator.history)
    learned = estimator.estimate("train", played_rollouts, judged=True)
    replayed = estimator.estimate_counterfactuals(rollouts)
    iteration = learned + replayed
    held_out = multiply_amounts(tasks, float(config.eval.samples))
    evaluation = estimator.estimate("eval", held_out, judged=config.eval.coach)
    hours, no_hours = _estimate_hours(estimator.history, differing, learned, replayed, evaluation, iterations, whole)
    memory = await _plan_engine(
        config, registry, (*played, *teachers), machines, learning=bool(trained), history=estimator.history
    )
    if estimator.history is not None and memory.unknown is None and not machines:
        memory = _with_measured(memory, estimator.history, [key for key in changed if key.startswith(_MEMORY_KEYS)])
    checkpoints = plan_checkpoints(config, memory)
    no_space = () if checkpoints is None or machines else checkpoints.problems
    others = (*overridden_settings(composed, tuple(roles), teachers), *no_space, *map(_TEACHES.format, teachers))
    return RunPlan(
        recipe=composed.full_name,
        agents=tuple(_planned_agent(agent, policy_of[agent], section) for agent, section in sections.items()),
        coaches=tuple(estimator.coaches),
        memory=memory,
        iterations=iterations,
        evaluations=evaluations,
        iteration=iteration,
        counterfactual=replayed,
        evaluation=evaluation,
        run=iteration * iterations + evaluation * whole,
        hours=hours,
        checkpoints=checkpoints,
        notes=_notes(previous, differing, no_tasks, no_hours, *others),
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


async def _plan_engine(
    config: RunConfig,
    registry: Registry,
    policies: Sequence[str],
    machines: Sequence[Machine],
    *,
    learning: bool,
    history: RunHistory | None,
) -> EnginePlan:
    """Ask the engine for the memory of the policies of these names."""
    if not policies:
        return EnginePlan(unknown="every policy is behind an API: there are no weights here")
    workflow: Workflow = registry.build("workflows", config.workflow.use, config.workflow.options)
    engine: Engine = registry.build("engines", config.engine.use, config.engine.options)
    if not hasattr(engine, "plan"):  # one that does not derive from core's class
        return EnginePlan(unknown=f"the engine {config.engine.use} makes no plan")
    try:
        train = config.train if learning else None
        expected = expect_actions(config, registry, workflow) if history is None else _measured_actions(history)
        specs = add_expected_actions(build_policy_specs(config, policies), config, tuple(workflow.agents), expected)
        return engine.plan(specs, train, rows=config.sampling.concurrency, machines=machines)
    finally:
        await engine.close()
        await workflow.close()


def _measured_actions(history: RunHistory) -> ActionTokens:
    """Return the actions of each agent in a trajectory of the recorded run, their mean number, rounded up, and as long
    as the longest."""
    split = history.split_or_other("train")
    return {
        agent: (totals.longest,) * math.ceil(totals.actions / split.trajectories)
        for agent, totals in split.agents.items()
    }


def _with_measured(memory: EnginePlan, history: RunHistory, differing: Sequence[str]) -> EnginePlan:
    """Add what the recorded run took at its peak, and of which settings that was."""
    if history.peak_memory is None:
        return memory
    took = f"{history.folder} took {history.peak_memory / 1e9:.1f} GB at its peak"
    same = f", with other settings ({', '.join(differing)})" if differing else ", with these settings"
    details = {**memory.details, "measured": history.peak_memory}
    return replace(memory, lines=(*memory.lines, took + same), details=details)


def _section(name: str, config: RunConfig) -> PolicySection:
    return config.policies[name] if name in config.policies else config.policies["default"]


def _planned_agent(agent: str, policy: str, section: PolicySection) -> PlannedAgent:
    model = section.model or f"{section.use} {getattr(section.options, 'model', '')}".rstrip()
    return PlannedAgent(agent=agent, policy=policy, kind=section.kind, model=model)


def _with_replaced(rollouts: int, config: RunConfig, history: RunHistory | None) -> PlannedAmount:
    """The rollouts of an iteration that learns from so many, with those that dynamic sampling replaces: as many as in
    the recorded run, or at most all of them in every round."""
    rounds = config.train.dynamic_sampling
    if rounds and history is not None and history.replaced is not None:
        return PlannedAmount(rollouts / (1.0 - history.replaced))
    return PlannedAmount(float(rollouts * (1 + rounds)), at_most=rounds > 0)


def _count_evaluations(config: RunConfig) -> int:
    """The number of evaluations of a run."""
    every, last = config.eval.every, config.train.iterations
    return int(config.eval.before) + len({last, *(range(every, last, every) if every else ())})


def _full_evaluations(config: RunConfig, evaluations: int) -> float:
    """The equivalent number of evaluations of all held-out tasks: if a part of the tasks selects the best checkpoint,
    the others are evaluated only after training, and before it if `eval.before` is on."""
    share = config.eval.selection
    if not config.checkpoint.best or share is None or evaluations < 2:
        return float(evaluations)
    return share * evaluations + (1 - share) * (1 + config.eval.before)


def _count_held_out_tasks(config: RunConfig, registry: Registry) -> tuple[PlannedAmount | None, str | None]:
    """The number of tasks of an evaluation, or why it is unknown."""
    if config.eval.problems is not None:
        return PlannedAmount(float(config.eval.problems)), None
    split: Split = "train" if config.eval.split == "train" else "eval"
    try:
        source: TaskSource = registry.build("tasks", config.tasks.use, config.tasks.options)
        return PlannedAmount(float(len(source.load(split)))), None
    except (TaskError, ConfigError) as error:
        return None, f"how many tasks an evaluation has is not known: {error}"


def _changed_settings(previous: Path, now: ComposedConfig) -> list[str]:
    """Settings in which the run in `previous` differs."""
    before = read_stored(previous / CONFIG).settings
    return [change.key for change in diff_settings(before, now.settings)]


def _matters(key: str) -> bool:
    if key.startswith(("coach.use", "coach.options.", "coach.by_agent.", "coach.hindsight.", "coach.reference_for")):
        return not any(f".{free}" in key for free in _FREE_COACH_KEYS)
    return key.startswith((*_MACHINE_KEYS, *_TEAM_KEYS))


def _estimate_hours(
    history: RunHistory | None,
    differing: Sequence[str],
    learned: Workload,
    replayed: Workload,
    evaluation: Workload,
    iterations: int,
    evaluations: float,
) -> tuple[PlannedAmount | None, str]:
    """Estimate the wall time of all iterations and evaluations, or the reason why it is unknown. Seconds scale with
    tokens, except for publishing weights, which takes as long as before. Evaluations and counterfactual rollouts sample
    at the speed at which an iteration collects."""
    if history is None:
        return None, ""
    if history.seconds is None or history.rollouts is None:
        return None, f"how long it takes is not known: {history.folder} finished no iteration"
    if other := [key for key in differing if key.startswith(_MACHINE_KEYS) or _BATCH_KEY in key]:
        return None, f"how long it takes is not known: {history.folder} was with another {', '.join(other)}"
    then = history.splits["train"]
    sampled = history.rollouts * _sampled_tokens(then) / then.trajectories
    now, again, held_out = learned.sampled_tokens, replayed.sampled_tokens, evaluation.sampled_tokens
    if now is None or again is None or held_out is None or not sampled:
        return None, "how long it takes is not known, as the tokens are not"
    published = PlannedAmount(history.seconds["publish"])
    apart = ("publish", "counterfactuals")
    by_tokens = sum(seconds for phase, seconds in history.seconds.items() if phase not in apart)
    collecting = history.seconds["collect"] / sampled
    training = (now * (by_tokens / sampled) + again * collecting + published) * iterations
    evaluating = held_out * collecting * evaluations
    return (training + evaluating) * (1 / 3600), ""


def _sampled_tokens(history: SplitHistory) -> float:
    """Sampled tokens of policies with local weights."""
    return float(sum(totals.sampled or 0 for totals in history.agents.values()))


def _notes(previous: Path | None, differing: Sequence[str], *unknown: str | None) -> tuple[str, ...]:
    notes = [why for why in unknown if why]
    if previous is None:
        notes.insert(
            0, "without --from RUN figures are bounds, and time is not known; with it they are what that run measured"
        )
    elif differing:
        notes.insert(0, f"{previous} had other settings, so what it measured may not hold: {', '.join(differing)}")
    return tuple(notes)
