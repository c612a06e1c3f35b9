"""Whether a team can learn at all: how often it and its agents are right, and whether the rewards of siblings differ.

Reinforcement amplifies what sampling sometimes gets right. Where nothing is right, where everything is, or where all
samples of a task get the same reward, an estimator that compares them has nothing to go by.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from mappa.evaluation.heldout import Evaluation, task_cluster
from mappa.evaluation.statistics import pass_at_k, share_interval
from mappa.session import Session
from mappa_core.experience import Experience
from mappa_core.records import MAX_SCORE, Float32, Float64, Int64, Interval, Trajectory

Finding = Literal["nothing to amplify", "always solved", "no spread", "fine", "cannot be told"]

FEW = 0.1
"""Share of groups that differ below which an iteration learns next to nothing. Where they are so few, at most this
share of right samples is called nothing to amplify, and the same share of wrong ones always solved."""

SAYS: Mapping[Finding, str] = {
    "nothing to amplify": "{right} are right, and {spread}. Warm-start first: {warm_start}",
    "always solved": "{right} are right, and {spread}. There is nothing to learn on these tasks: take harder ones",
    "no spread": (
        "{spread}, so comparing siblings teaches next to nothing. Take tasks that are solved sometimes, more "
        "train.samples, or a coach that tells actions apart"
    ),
    "fine": "{spread}",
    "cannot be told": "there are no siblings whose rewards are known",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Learnability:
    """Whether there is something to learn, for a team by its outcome, or for an agent by its rewards.

    `pass_at_1` is the share that is right, `pass_at_k` the chance that at least one of all samples is, None where it is
    unknown. In `differing` of the `groups` of at least two siblings with known rewards these are not all equal.
    """

    pass_at_1: Interval | None
    pass_at_k: Interval | None
    groups: int
    differing: int

    @property
    def finding(self) -> Finding:
        if self.groups and self.differing >= FEW * self.groups:
            return "fine"
        # Without siblings few right ones may be enough: then only none and all say something.
        few = FEW if self.groups else 0.0
        if self.pass_at_1 is not None and self.pass_at_1.mean <= few:
            return "nothing to amplify"
        if self.pass_at_1 is not None and self.pass_at_1.mean >= 1 - few:
            return "always solved"
        return "no spread" if self.groups else "cannot be told"

    def describe(self, agent: str | None = None) -> str:
        """Say what was found, on what grounds, and what to do. `agent`: whose rewards they are; None: the team's."""
        what = "rollouts" if agent is None else "actions"
        right = "" if self.pass_at_1 is None else f"{100 * self.pass_at_1.mean:.1f} % of {what}"
        no_groups = "there are no siblings to compare"
        spread = f"siblings differ in {self.differing} of {self.groups} groups" if self.groups else no_groups
        warm_start = "mappa warm-start" if agent is None else f"mappa warm-start --agent {agent}"
        return f"{self.finding}: {SAYS[self.finding].format(right=right, spread=spread, warm_start=warm_start)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedAgent(Learnability):
    """An agent. An action is right if the last verdict on it is above half of the points; siblings are its actions of
    the same task and turn, and only agents that are `trained` have groups of rewards. `cut_off` is the share of its
    `actions` that reached the token limit, `no_call` of those that were offered tools and called none, None without
    such."""

    trained: bool
    actions: int
    cut_off: float | None
    no_call: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What can be learned on some tasks, from `samples` of each: by the outcome of the `team`, and by agent."""

    samples: int
    team: Learnability
    agents: Mapping[str, ProbedAgent]

    def describe(self) -> dict[str, str]:
        """What was found of the team and of every agent that is trained, by name."""
        trained = {name: agent for name, agent in self.agents.items() if agent.trained}
        learning = [name for name, agent in trained.items() if agent.finding == "fine"]
        by_outcome = self.team.describe()
        if learning and self.team.finding not in ("fine", "cannot be told"):
            by_outcome += f". That is by the outcome alone: the rewards of {', '.join(learning)} tell actions apart"
        return {"team": by_outcome, **{name: agent.describe(name) for name, agent in trained.items()}}

    def warnings(self) -> list[str]:
        """Sentences on what cannot be learned: by agent where rewards are known, and otherwise by outcome."""
        by_agent = {name: agent for name, agent in self.agents.items() if agent.groups}
        if by_agent:
            return [f"{name}: {agent.describe(name)}" for name, agent in by_agent.items() if agent.finding != "fine"]
        if self.team.finding in ("fine", "cannot be told"):
            return []
        return [f"team: {self.team.describe()}. That is by the outcome alone, as no verdict was asked for"]


def probe_session(session: Session, evaluation: Evaluation, trajectories: Sequence[Trajectory]) -> Probe:
    """Measure what can be learned from the `trajectories` of an evaluation, by the rewards of training."""
    trajectories = session.experience_builder.settle(trajectories)
    experience = session.experience_builder.build(trajectories)
    return measure_probe(evaluation, trajectories, experience, tuple(session.workflow.agents))


def measure_probe(
    evaluation: Evaluation, trajectories: Sequence[Trajectory], experience: Experience, agents: Sequence[str]
) -> Probe:
    """Measure what can be learned from the `trajectories` of an evaluation, settled as training settles them.
    `experience` has their rewards."""
    samples = evaluation.values.shape[1]
    # The evaluation counts whatever the team did not finish as unsolved; training compares what it knows to have ended.
    outcomes: dict[str, list[float]] = {}
    for trajectory in trajectories:
        if trajectory.error is None:
            outcomes.setdefault(trajectory.task.id, []).append(trajectory.outcome[evaluation.metric])
    siblings: list[Float64] = [np.array(values) for values in outcomes.values() if len(values) > 1]
    team = Learnability(
        pass_at_1=evaluation.interval,
        pass_at_k=evaluation.pass_interval(samples),
        groups=len(siblings),
        differing=count_differing(siblings),
    )
    return Probe(
        samples=samples,
        team=team,
        agents={agent: _probe_agent(agent, trajectories, experience, samples) for agent in agents},
    )


def sibling_rewards(experience: Experience, rows: Int64) -> list[Float32]:
    """Group the rewards of `rows` by siblings (task, agent, turn); groups of one are left out."""
    reward, group = experience.reward[rows], experience.group[rows]
    siblings = [reward[group == number] for number in np.unique(group)]
    return [rewards for rewards in siblings if len(rewards) > 1]


def count_differing(groups: Sequence[Float32] | Sequence[Float64]) -> int:
    """Count the groups whose values are not all equal."""
    # Compared exactly: rewards are computed alike for siblings, so equal verdicts give equal bits.
    return sum(bool((values != values[0]).any()) for values in groups)


def _probe_agent(agent: str, trajectories: Sequence[Trajectory], experience: Experience, k: int) -> ProbedAgent:
    steps = [step for trajectory in trajectories for step in trajectory.steps if step.agent == agent]
    offered = [step for step in steps if step.tools]
    judged = _judged_groups(agent, trajectories)
    full = [group for group in judged if len(group.right) >= k]
    is_trained = agent in experience.agents
    number = experience.agents.index(agent) if is_trained else -1
    rewards = sibling_rewards(experience, np.flatnonzero((experience.agent == number) & (experience.weight > 0)))
    return ProbedAgent(
        pass_at_1=_interval([(float(right), group.cluster) for group in judged for right in group.right]),
        pass_at_k=_interval([(pass_at_k(len(group.right), sum(group.right), k), group.cluster) for group in full]),
        groups=len(rewards),
        differing=count_differing(rewards),
        trained=is_trained,
        actions=len(steps),
        cut_off=_share([step.truncated for step in steps]),
        no_call=_share([not step.calls for step in offered]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _JudgedGroup:
    """The scored siblings of one task and turn: which are right, and the cluster of their task."""

    cluster: str
    right: list[bool]


def _judged_groups(agent: str, trajectories: Sequence[Trajectory]) -> list[_JudgedGroup]:
    groups: dict[tuple[str, int], _JudgedGroup] = {}
    for trajectory in trajectories:
        # Verdicts are in order of arrival, and later ones replace earlier ones.
        score_of = {verdict.step: verdict.score for verdict in trajectory.verdicts}
        for step in trajectory.steps:
            score = score_of.get(step.id)
            if step.agent != agent or score is None:
                continue
            group = _JudgedGroup(cluster=task_cluster(trajectory.task), right=[])
            groups.setdefault((trajectory.task.id, step.turn), group).right.append(score > MAX_SCORE / 2)
    return list(groups.values())


def _interval(values: Sequence[tuple[float, str]]) -> Interval | None:
    """The mean of shares with their clusters; None without any."""
    if not values:
        return None
    shares, clusters = zip(*values, strict=True)
    return share_interval(shares, clusters)


def _share(values: Sequence[bool]) -> float | None:
    return sum(values) / len(values) if values else None
