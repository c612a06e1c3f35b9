"""A recipe, and maybe an earlier run, to a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mappa_core.config.changes import difference
from mappa_core.config.compose import Composed, restore
from mappa_core.config.schema import PolicySection, RunConfig
from mappa_core.engine.cluster.placement import Resources
from mappa_core.errors import ConfigError, TaskError
from mappa_core.plugins import Registry
from mappa_core.protocols import Split, TaskSource, Workflow
from mappa_core.session.policies import policies_of, policy_specs, trained_policies
from mappa_core.store.folder import CONFIG
from mappa_core.studies.plan.amounts import Amount, Work, times
from mappa_core.studies.plan.asked import Judged, judged
from mappa_core.studies.plan.counting import Counting
from mappa_core.studies.plan.history import History, Played, read_history
from mappa_core.studies.plan.memory import Memory, memory

_FREE_OF_COACH = ("price", "limits")
_OF_THE_MACHINE = ("engine.", "policies.")
_OF_THE_TEAM = ("tasks.", "workflow.", "agents.", "sampling.max_tokens", "sampling.temperature")
"""Settings that decide what agents do, beside those of the machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Player:
    """An agent and its policy: which kind of weights, of which model, or whose API."""

    agent: str
    policy: str
    kind: str
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a recipe is expected to take. `iteration`, `evaluation` and `run` are the work of one iteration, of one
    evaluation and of all; `counterfactual` is what of an iteration shows what actions were worth. `hours` is wall time,
    None where it is not known. `notes` say what the figures stand on."""

    recipe: str
    players: tuple[Player, ...]
    judged: tuple[Judged, ...]
    memory: Memory
    iterations: int
    evaluations: int
    iteration: Work
    counterfactual: Work
    evaluation: Work
    run: Work
    hours: Amount | None
    notes: tuple[str, ...]


async def plan(composed: Composed, registry: Registry, resources: Resources, *, previous: Path | None = None) -> Plan:
    """What the run that `composed` describes is expected to take; nothing is started, and no key needed.

    Args:
        resources: for the engine `cluster`.
        previous: the folder of a run whose measurements are used; without one most figures are bounds, or unknown.

    Raises:
        ConfigError, PluginError: the recipe cannot be built, or does not fit.
        RunError: `previous` is no run, or one of another team.
    """
    composed.require_installed()
    config = composed.config
    workflow: Workflow = registry.build("workflows", config.workflow.use, config.workflow.options)
    try:
        roles, most_turns = workflow.agents, workflow.most_turns
    finally:
        await workflow.close()
    policy_of = policies_of(config, tuple(roles))
    trained = trained_policies(config, policy_of.values())
    sections = {agent: _section(name, config) for agent, name in policy_of.items()}
    differing = [] if previous is None else _differing(restore(registry, previous / CONFIG), composed)
    counting = Counting(
        config=config,
        sections=sections,
        most_turns=most_turns,
        judged=await judged(config, registry, roles),
        history=None if previous is None else read_history(previous, tuple(roles)),
        coach_differs=any(key.startswith("coach.") for key in differing),
    )
    specs = policy_specs(config, [name for agent, name in policy_of.items() if sections[agent].kind != "api"])
    tasks, no_tasks = _held_out(config, registry)
    evaluations = _evaluations(config) if trained else 1
    whole = _whole(config, evaluations)
    iterations = config.train.iterations if trained else 0
    rollouts = config.train.prompts * config.train.samples
    learned, replayed = counting.work("train", Amount(float(rollouts)), judged=True), counting.counterfactual(rollouts)
    iteration = learned + replayed
    evaluation = counting.work("eval", times(tasks, float(config.eval.samples)), judged=config.eval.coach)
    hours, no_hours = _hours(counting.history, differing, learned, replayed, evaluation, iterations, whole)
    return Plan(
        recipe=composed.full_name,
        players=tuple(_player(agent, policy_of[agent], section) for agent, section in sections.items()),
        judged=tuple(counting.judged),
        memory=memory(config, specs, resources, learning=bool(trained)),
        iterations=iterations,
        evaluations=evaluations,
        iteration=iteration,
        counterfactual=replayed,
        evaluation=evaluation,
        run=iteration * iterations + evaluation * whole,
        hours=hours,
        notes=_notes(previous, differing, no_tasks, no_hours),
    )


def _section(name: str, config: RunConfig) -> PolicySection:
    return config.policies[name] if name in config.policies else config.policies["default"]


def _player(agent: str, policy: str, section: PolicySection) -> Player:
    model = section.model or f"{section.use} {getattr(section.options, 'model', '')}".rstrip()
    return Player(agent=agent, policy=policy, kind=section.kind, model=model)


def _evaluations(config: RunConfig) -> int:
    """How often a run evaluates."""
    every, last = config.eval.every, config.train.iterations
    return len({0, last, *(range(every, last, every) if every else ())})


def _whole(config: RunConfig, evaluations: int) -> float:
    """How many evaluations of all held-out tasks they come to: where a part of the tasks chooses the best checkpoint,
    the others are played before and after alone."""
    share = config.eval.selection
    if not config.checkpoint.best or share is None or evaluations < 2:
        return float(evaluations)
    return share * evaluations + (1 - share) * 2


def _held_out(config: RunConfig, registry: Registry) -> tuple[Amount | None, str | None]:
    """How many tasks an evaluation plays, or why that is not known."""
    if config.eval.problems is not None:
        return Amount(float(config.eval.problems)), None
    split: Split = "train" if config.eval.split == "train" else "eval"
    try:
        source: TaskSource = registry.build("tasks", config.tasks.use, config.tasks.options)
        return Amount(float(len(source.load(split)))), None
    except (TaskError, ConfigError) as error:
        return None, f"how many tasks an evaluation has is not known: {error}"


def _differing(before: Composed, now: Composed) -> list[str]:
    """Settings that `before` had otherwise and that what it measured hangs on."""
    return [change.key for change in difference(before, now) if _matters(change.key)]


def _matters(key: str) -> bool:
    if key.startswith(("coach.use", "coach.options.", "coach.by_agent.", "coach.hindsight.", "coach.reference_for")):
        return not any(f".{free}" in key for free in _FREE_OF_COACH)
    return key.startswith((*_OF_THE_MACHINE, *_OF_THE_TEAM))


def _hours(
    history: History | None,
    differing: Sequence[str],
    learned: Work,
    replayed: Work,
    evaluation: Work,
    iterations: int,
    evaluations: float,
) -> tuple[Amount | None, str]:
    """Wall time of all iterations and evaluations, or why it is not known. Seconds go by tokens; publishing weights
    takes what it took. Evaluations and counterfactual rollouts sample as fast as an iteration collects."""
    if history is None:
        return None, ""
    if history.seconds is None or history.rollouts is None:
        return None, f"how long it takes is not known: {history.folder} finished no iteration"
    if other := [key for key in differing if key.startswith(_OF_THE_MACHINE)]:
        return None, f"how long it takes is not known: {history.folder} was with another {', '.join(other)}"
    then = history.splits["train"]
    sampled = history.rollouts * _sampled(then) / then.trajectories
    now, again, held_out = learned.sampled_tokens, replayed.sampled_tokens, evaluation.sampled_tokens
    if now is None or again is None or held_out is None or not sampled:
        return None, "how long it takes is not known, as the tokens are not"
    published = Amount(history.seconds["publish"])
    apart = ("publish", "counterfactuals")
    by_tokens = sum(seconds for phase, seconds in history.seconds.items() if phase not in apart)
    collecting = history.seconds["collect"] / sampled
    training = (now * (by_tokens / sampled) + again * collecting + published) * iterations
    evaluating = held_out * collecting * evaluations
    return (training + evaluating) * (1 / 3600), ""


def _sampled(played: Played) -> float:
    """Tokens of policies with weights here."""
    return float(sum(acted.sampled or 0 for acted in played.agents.values()))


def _notes(previous: Path | None, differing: Sequence[str], *unknown: str | None) -> tuple[str, ...]:
    notes = [why for why in unknown if why]
    if previous is None:
        notes.insert(
            0, "without a run figures are bounds, and time is not known: --from RUN takes what one has measured"
        )
    elif differing:
        notes.insert(0, f"{previous} had other settings, so what it measured may not hold: {', '.join(differing)}")
    return tuple(notes)
