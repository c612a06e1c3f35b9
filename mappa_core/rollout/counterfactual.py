"""Counterfactual rollouts: a finished trajectory is played again up to an action, which is replaced, and then live.

What stands before the action is replayed, files included, and asked of nobody. What comes after it is drawn with the
seeds of the original, so that both have the same luck (common random numbers; Glasserman and Yao 1992): a replacement
that says the same has the same outcome, and as that luck was drawn without regard to the action, the credit stays
unbiased. These rollouts are kept under a split of their own; nobody judges them, and nothing learns from them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

from mappa_core.config.schema import CounterfactualSection
from mappa_core.credit.counterfactual import NONE_PLAYED, credit_of
from mappa_core.records import Completion, Counterfactual, Step, Trajectory
from mappa_core.rollout.collector import Collector
from mappa_core.rollout.lost import is_lost
from mappa_core.rollout.replay import Replay
from mappa_core.rollout.resuming import resume
from mappa_core.rollout.team import Altered, Job, Recorder, Team
from mappa_core.store.counterfactuals import COUNTERFACTUAL
from mappa_core.store.database import Store

NOT_DRAWN = "not_drawn"
NO_SIBLING = "no_sibling"

Siblings = Mapping[tuple[str, str, int], Sequence[tuple[str, Step]]]
"""The actions of an iteration, each with its trajectory, by task, agent and turn."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Weighed:
    """The trajectories of an iteration with their counterfactuals, and the `rollouts` that gave them.

    `settled` counts the actions that have a credit, `missing` the others of the agents that are asked about, by reason.
    """

    trajectories: tuple[Trajectory, ...]
    rollouts: tuple[Trajectory, ...]
    settled: int
    missing: Mapping[str, int] = field(default_factory=dict)

    def metrics(self) -> dict[str, float]:
        """The figures under flat names."""
        lost = sum(is_lost(one.error) for one in self.rollouts)
        counted = {"rollouts": len(self.rollouts), "lost": lost, "settled": self.settled}
        missing = {f"missing/{why}": count for why, count in self.missing.items()}
        return {f"counterfactual/{name}": float(value) for name, value in {**counted, **missing}.items()}


class Counterfactuals:
    """Plays the counterfactual rollouts of iterations.

    Args:
        team: as it plays in training.
        texts: what each agent says by default, where that is the replacement.
        store, archive: of the run; rollouts that it holds are not played again.
        recorder: where they are recorded: the store.
        waves: as of a Collector.
    """

    def __init__(
        self,
        team: Team,
        section: CounterfactualSection,
        *,
        texts: Mapping[str, str],
        store: Store,
        recorder: Recorder,
        archive: Path,
        concurrency: int,
        waves: bool,
    ) -> None:
        self._section = section
        self._agents = frozenset(section.agents or team.workflow.agents)
        self._texts = texts
        self._store = store
        self._team = replace(team, judges={}, hindsight=None, unheard=frozenset(team.judges))
        self._collector = Collector(
            self._team, recorder=recorder, archive=archive, concurrency=concurrency, waves=waves
        )
        self._learned = {number for number, _ in store.iterations()}

    async def weigh(self, iteration: int, trajectories: Sequence[Trajectory]) -> Weighed:
        """The trajectories that `iteration` learns from, with what came of their counterfactuals. What is recorded of
        those is not played again, but for what was lost in an iteration that was not learned from.

        Raises:
            MappaError: the run itself is at fault.
        """
        drawn = self._drawn(trajectories)
        weighed = [one for one in trajectories if one.id in drawn and self._has_outcome(one)]
        resumed = resume(self._store, COUNTERFACTUAL, iteration, settled=iteration + 1 in self._learned)
        siblings = _siblings(trajectories)
        plays = [play for one in weighed for play in self._plays(iteration, one, siblings)]
        jobs = [job for job, _ in plays]
        ended = [trajectory for job in jobs if (trajectory := resumed.trajectory(job)) is not None]
        rollouts: Sequence[Trajectory] = ended
        if len(ended) < len(jobs):
            replays = {job.id: _taken_up(replay, resumed.replays.get(job.id)) for job, replay in plays}
            rollouts = await self._collector.collect(jobs, replays, resample=resumed.resample)
        found: dict[str, list[Counterfactual]] = defaultdict(list)
        for job, rollout in zip(jobs, rollouts, strict=True):
            if job.altered is not None:
                found[job.origin].append(_came_of(job.altered, rollout))
        given = tuple(replace(one, counterfactuals=tuple(found.get(one.id, ()))) for one in trajectories)
        settled, missing = self._counted(given, drawn)
        return Weighed(trajectories=given, rollouts=tuple(rollouts), settled=settled, missing=missing)

    def _drawn(self, trajectories: Sequence[Trajectory]) -> frozenset[str]:
        """The share whose actions are replaced: it hangs on names alone, and is the same however often it is drawn."""
        names = sorted((one.id for one in trajectories), key=lambda name: self._team.seed_of(COUNTERFACTUAL, name))
        return frozenset(names[: round(self._section.share * len(names))])

    def _has_outcome(self, trajectory: Trajectory) -> bool:
        return trajectory.error is None and self._team.workflow.metric in trajectory.outcome

    def _plays(self, iteration: int, trajectory: Trajectory, siblings: Siblings) -> Iterator[tuple[Job, Replay]]:
        """Every counterfactual rollout of a trajectory, in canonical order."""
        for step in trajectory.steps:
            if step.agent not in self._agents:
                continue
            for number, action in enumerate(self._replacements(trajectory, step, siblings)):
                altered = Altered(trajectory=trajectory.id, position=step.position, number=number)
                job = Job(
                    task=trajectory.task,
                    split="train",
                    iteration=iteration,
                    sample=trajectory.sample,
                    altered=altered,
                )
                before = tuple(one for one in trajectory.steps if one.position < step.position)
                yield job, Replay(steps=before, given=step.position, instead=action)

    def _replacements(self, trajectory: Trajectory, step: Step, siblings: Siblings) -> Sequence[Completion | None]:
        """What stands in for an action, None for what is still to be sampled."""
        if self._section.use == "resample":
            return [None] * self._section.samples
        if self._section.use == "default":
            return [_said(self._texts[step.agent])]
        others = [
            other
            for name, other in siblings[trajectory.task.id, step.agent, step.turn]
            if name != trajectory.id and _sight(other) == _sight(step)
        ]
        chosen = Random(self._team.seed_of(COUNTERFACTUAL, step.id)).sample(others, k=len(others))
        return [replace(other.completion, usage=None, seconds=0.0) for other in chosen[: self._section.samples]]

    def _counted(self, trajectories: Sequence[Trajectory], drawn: frozenset[str]) -> tuple[int, Mapping[str, int]]:
        settled, missing = 0, Counter[str]()
        for trajectory in trajectories:
            for step in trajectory.steps:
                if step.agent not in self._agents:
                    continue
                credit = credit_of(trajectory, step.position, self._team.workflow.metric)
                if credit.value is not None:
                    settled += 1
                elif trajectory.id not in drawn:
                    missing[NOT_DRAWN] += 1
                else:
                    missing[NO_SIBLING if credit.why == NONE_PLAYED else str(credit.why)] += 1
        return settled, missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Extra:
    """What counterfactual rollouts add to an iteration: at most so many of them, actions in them, and tokens sampled;
    None where a workflow does not say how often its agents act."""

    rollouts: float | None
    actions: float | None
    tokens: float | None


def extra(
    section: CounterfactualSection, most_turns: Mapping[str, int], most_tokens: Mapping[str, int], trajectories: int
) -> Extra:
    """The bound of an iteration of so many trajectories. `most_turns` and `most_tokens` (of an action) are by agent;
    the latter names every agent."""
    asked = tuple(section.agents or most_tokens)
    followed = most_followed(most_turns, tuple(most_tokens), asked)
    if followed is None:
        return Extra(rollouts=None, actions=None, tokens=None)
    count = per_action(section) * round(section.share * trajectories)
    given = {agent: most_turns[agent] if agent in asked and section.use != "resample" else 0 for agent in most_tokens}
    return Extra(
        rollouts=float(count * sum(most_turns[agent] for agent in asked)),
        actions=count * sum(followed.values()),
        tokens=count * sum((followed[agent] - given[agent]) * tokens for agent, tokens in most_tokens.items()),
    )


def per_action(section: CounterfactualSection) -> int:
    """Counterfactual rollouts of an action, with `sibling` at most."""
    return 1 if section.use == "default" else section.samples


def most_followed(
    most_turns: Mapping[str, int], agents: Sequence[str], asked: Sequence[str]
) -> Mapping[str, float] | None:
    """The most actions of each agent that a trajectory has from each action of the agents `asked` on, that one
    included; None where a workflow sets no bound. An agent of n turns has n + ... + 1 of them after its own, and at
    most n after each one of another."""
    if any(agent not in most_turns for agent in agents):
        return None

    def after(replaced: str, agent: str) -> float:
        turns = most_turns[agent]
        return turns * (turns + 1) / 2 if replaced == agent else float(most_turns[replaced] * turns)

    return {agent: sum(after(one, agent) for one in asked) for agent in agents}


def _siblings(trajectories: Sequence[Trajectory]) -> Siblings:
    found: dict[tuple[str, str, int], list[tuple[str, Step]]] = defaultdict(list)
    for trajectory in sorted(trajectories, key=lambda one: one.id):
        for step in trajectory.steps:
            found[trajectory.task.id, step.agent, step.turn].append((trajectory.id, step))
    return found


def _sight(step: Step) -> tuple[object, ...]:
    """What an agent saw when it acted."""
    return step.messages, step.tools, step.own_tools


def _said(text: str) -> Completion:
    return Completion(text=text, prompt_tokens=None, tokens=None, logprobs=None, finish="stop")


def _taken_up(replay: Replay, begun: Replay | None) -> Replay:
    """`replay` with what an earlier process recorded of the same rollout."""
    return replay if begun is None else replace(replay, steps=(*replay.steps, *begun.steps), lost=begun.lost)


def _came_of(altered: Altered, rollout: Trajectory) -> Counterfactual:
    return Counterfactual(
        position=altered.position, number=altered.number, outcome=rollout.outcome, error=rollout.error
    )
