"""Counterfactual rollouts: replay a finished trajectory up to one action, replace that action, and continue live.

What precedes the action is replayed, files included; what follows is sampled with the seeds of the original (common
random numbers; Glasserman and Yao 1992): the same text has the same outcome, and as the seeds do not depend on the
action, the credit stays unbiased. No coach judges these rollouts, and no policy learns from them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

from mappa.rollout.collector import RolloutCollector
from mappa.rollout.replay import Replay
from mappa.rollout.resume import resume_iteration
from mappa.rollout.team import Job, Recorder, Replacement, Team
from mappa.rollout.tool_failures import is_tool_failure
from mappa.store.iteration_report import CounterfactualFigures
from mappa.store.queries import COUNTERFACTUAL
from mappa.store.writer import Store
from mappa_core.config.schema import CounterfactualSection
from mappa_core.credit.counterfactual import NOT_PLAYED, counterfactual_credit
from mappa_core.credit.overflow import is_overflow
from mappa_core.records import Completion, Counterfactual, Step, Trajectory

NOT_DRAWN = "not_drawn"
NO_SIBLING = "no_sibling"

SiblingActions = Mapping[tuple[str, str, int], Sequence[tuple[str, Step]]]
"""Actions of an iteration, each with the id of its trajectory, by task, agent and turn."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CounterfactualResult:
    """Trajectories of an iteration with their counterfactuals attached, and the counterfactual `rollouts` themselves.
    `settled` counts the actions that have a credit, `missing` the other actions of the selected agents by reason."""

    trajectories: tuple[Trajectory, ...]
    rollouts: tuple[Trajectory, ...]
    settled: int
    missing: Mapping[str, int] = field(default_factory=dict)

    @property
    def figures(self) -> CounterfactualFigures:
        lost = sum(is_tool_failure(rollout.error) for rollout in self.rollouts)
        return CounterfactualFigures(
            rollouts=len(self.rollouts),
            lost=lost,
            overflowed=sum(is_overflow(rollout.error) for rollout in self.rollouts),
            settled=self.settled,
            missing=self.missing,
        )


class CounterfactualCollector:
    """Collects the counterfactual rollouts of iterations with the team as in training. Rollouts that `store` and
    `archive` of the run hold are not collected again. `settle` returns trajectories as they are learned from
    (`ExperienceBuilder.settle`)."""

    def __init__(
        self,
        team: Team,
        section: CounterfactualSection,
        *,
        settle: Callable[[Sequence[Trajectory]], Sequence[Trajectory]],
        default_actions: Mapping[str, str],
        store: Store,
        recorder: Recorder,
        archive: Path,
        concurrency: int,
        waves: bool,
    ) -> None:
        self._section = section
        self._agents = frozenset(section.agents or team.workflow.agents)
        self._settle = settle
        self._default_actions = default_actions
        self._store = store
        # Without coaches: only outcomes are compared. A workflow that feeds verdicts back would act otherwise than in
        # training, so it gets an error in place of none.
        self._team = replace(team, coach_of={}, hindsight=None, unjudged=frozenset(team.coach_of))
        self._collector = RolloutCollector(
            self._team, recorder=recorder, archive=archive, concurrency=concurrency, waves=waves
        )
        self._learned = {report.iteration for report in store.iterations()}

    async def collect(self, iteration: int, trajectories: Sequence[Trajectory]) -> CounterfactualResult:
        """Collect the counterfactuals of the trajectories that `iteration` learns from and attach them. Recorded
        rollouts are reused, except those lost to tool failures in an iteration that was not learned from."""
        selected = self._select_share(trajectories)
        # A trajectory without an outcome has nothing to be compared with.
        replaced = [
            trajectory
            for trajectory in self._settle(trajectories)
            if trajectory.id in selected and self._is_graded(trajectory)
        ]
        resumed = resume_iteration(self._store, COUNTERFACTUAL, iteration, is_consumed=iteration + 1 in self._learned)
        siblings = _group_siblings(trajectories)
        plays = [play for trajectory in replaced for play in self._jobs_of(iteration, trajectory, siblings)]
        jobs = [job for job, _ in plays]
        rollouts = resumed.trajectories(jobs)
        if rollouts is None:
            replays = {job.id: _with_recorded_steps(replay, resumed.replays.get(job.id)) for job, replay in plays}
            rollouts = await self._collector.collect(jobs, replays, resample=resumed.resample)
        by_origin: dict[str, list[Counterfactual]] = defaultdict(list)
        for job, rollout in zip(jobs, rollouts, strict=True):
            replacement = job.replacement
            if replacement is not None:
                by_origin[job.origin].append(
                    Counterfactual(
                        position=replacement.position,
                        number=replacement.number,
                        outcome=rollout.outcome,
                        error=rollout.error,
                    )
                )
        attached = tuple(
            replace(trajectory, counterfactuals=tuple(by_origin[trajectory.id])) for trajectory in trajectories
        )
        settled, missing = self._count_settled(self._settle(attached), selected)
        return CounterfactualResult(trajectories=attached, rollouts=rollouts, settled=settled, missing=missing)

    def _is_graded(self, trajectory: Trajectory) -> bool:
        return trajectory.error is None and self._team.workflow.metric in trajectory.outcome

    def _select_share(self, trajectories: Sequence[Trajectory]) -> frozenset[str]:
        """Ids of the share of trajectories whose actions are replaced: a pure function of seed and ids."""
        names = [trajectory.id for trajectory in trajectories]
        # The smallest hashes: a random choice that needs no state, so a resume chooses the same.
        names.sort(key=lambda name: self._team.seed_of(COUNTERFACTUAL, name))
        return frozenset(names[: round(self._section.share * len(names))])

    def _jobs_of(
        self, iteration: int, trajectory: Trajectory, siblings: SiblingActions
    ) -> Iterator[tuple[Job, Replay]]:
        """Yield every counterfactual rollout of a trajectory, in canonical order."""
        job = Job(task=trajectory.task, split="train", iteration=iteration, sample=trajectory.sample)
        for step in trajectory.steps:
            if step.agent not in self._agents:
                continue
            before = tuple(earlier for earlier in trajectory.steps if earlier.position < step.position)
            for number, action in enumerate(self._replacements(trajectory, step, siblings)):
                replacement = Replacement(trajectory=trajectory.id, position=step.position, number=number)
                replay = Replay(steps=before, fork_position=step.position, replacement=action)
                yield replace(job, replacement=replacement), replay

    def _replacements(self, trajectory: Trajectory, step: Step, siblings: SiblingActions) -> list[Completion | None]:
        """Replacements of an action; None is one that is still to be sampled."""
        if self._section.use == "resample":
            return [None] * self._section.samples
        if self._section.use == "default":
            text = self._default_actions[step.agent]
            return [Completion(text=text, prompt_tokens=None, tokens=None, logprobs=None, finish="stop")]
        # Only actions after the same observation: others answer something that this agent was not shown.
        others = [
            other
            for name, other in siblings[trajectory.task.id, step.agent, step.turn]
            if name != trajectory.id and _observation(other) == _observation(step)
        ]
        chosen = Random(self._team.seed_of(COUNTERFACTUAL, step.id)).sample(others, k=len(others))
        # Without usage: what the sibling's sampling cost was counted with the sibling.
        return [replace(other.completion, usage=None, seconds=0.0) for other in chosen[: self._section.samples]]

    def _count_settled(self, trajectories: Sequence[Trajectory], selected: frozenset[str]) -> tuple[int, Counter[str]]:
        settled, missing = 0, Counter[str]()
        for trajectory in trajectories:
            for step in trajectory.steps:
                if step.agent not in self._agents:
                    continue
                credit = counterfactual_credit(trajectory, step.position, self._team.workflow.metric)
                if credit.value is not None:
                    settled += 1
                elif trajectory.id not in selected:
                    missing[NOT_DRAWN] += 1
                else:
                    # Of a selected trajectory with an outcome, all are played but those without a sibling.
                    reason = NO_SIBLING if credit.reason == NOT_PLAYED else str(credit.reason)
                    missing[reason] += 1
        return settled, missing


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterfactualBound:
    """Upper bounds of the rollouts, actions and sampled tokens that counterfactuals add to an iteration; None if the
    workflow does not bound the turns of its agents."""

    rollouts: float | None
    actions: float | None
    tokens: float | None


def bound_counterfactuals(
    section: CounterfactualSection, max_turns: Mapping[str, int], max_tokens: Mapping[str, int], trajectories: int
) -> CounterfactualBound:
    """The bound of an iteration of `trajectories` trajectories. `max_tokens` of an action names every agent."""
    replaced_agents = tuple(section.agents or max_tokens)
    actions_after = max_actions_after(max_turns, tuple(max_tokens), replaced_agents)
    if actions_after is None:
        return CounterfactualBound(rollouts=None, actions=None, tokens=None)
    count = rollouts_per_action(section) * round(section.share * trajectories)
    # Each agent's replaced actions are sampled only with `resample`; otherwise their text is given.
    given = Counter[str]()
    if section.use != "resample":
        given.update({agent: max_turns[agent] for agent in replaced_agents})
    sampled = sum((actions_after[agent] - given[agent]) * limit for agent, limit in max_tokens.items())
    return CounterfactualBound(
        rollouts=float(count * sum(max_turns[agent] for agent in replaced_agents)),
        actions=count * sum(actions_after.values()),
        tokens=count * sampled,
    )


def rollouts_per_action(section: CounterfactualSection) -> int:
    """Number of counterfactual rollouts per action; an upper bound for `sibling`."""
    return 1 if section.use == "default" else section.samples


def max_actions_after(
    max_turns: Mapping[str, int], agents: Sequence[str], replaced_agents: Sequence[str]
) -> Mapping[str, float] | None:
    """Upper bound of actions per agent in all rollouts that replace one action of `replaced_agents`, counted from the
    replaced action on, that one included; None if the workflow sets no bound. An agent of n turns has n + ... + 1 of
    them after its own actions, and at most n after each action of another agent."""
    if any(agent not in max_turns for agent in agents):
        return None

    def actions_after(replaced: str, agent: str) -> float:
        turns = max_turns[agent]
        if replaced == agent:
            return turns * (turns + 1) / 2  # n + (n - 1) + … + 1
        return float(max_turns[replaced] * turns)

    return {agent: sum(actions_after(replaced, agent) for replaced in replaced_agents) for agent in agents}


def _group_siblings(trajectories: Sequence[Trajectory]) -> SiblingActions:
    siblings: dict[tuple[str, str, int], list[tuple[str, Step]]] = defaultdict(list)
    # By id, not in the order in which they ended: which sibling is chosen has to be the same in a resume.
    for trajectory in sorted(trajectories, key=lambda trajectory: trajectory.id):
        for step in trajectory.steps:
            siblings[trajectory.task.id, step.agent, step.turn].append((trajectory.id, step))
    return siblings


def _observation(step: Step) -> tuple[object, ...]:
    return step.messages, step.tools, step.own_tools, step.stop


def _with_recorded_steps(replay: Replay, begun: Replay | None) -> Replay:
    return replay if begun is None else replace(replay, steps=(*replay.steps, *begun.steps), lost=begun.lost)
