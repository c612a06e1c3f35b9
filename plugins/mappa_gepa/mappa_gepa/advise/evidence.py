"""What a recorded run says of a team: its result, and how much mending one agent can give at most."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import fmean

from mappa.runs import RunReader
from mappa.statistics import Interval, share_interval
from mappa_core import MAX_SCORE, NOBODY, RunError, Split, Trajectory
from mappa_gepa.feedback import counting_verdicts
from mappa_gepa.rollouts import CANDIDATE_EVENT, metric_value

TEAM_EVENT = "advised_team"
"""The number of a team of a race, which its trajectories have as their iteration, and its settings."""
MAX_ROLLOUTS = 512
"""Rollouts that are read, the newest ones: earlier ones were played by another team where the run trained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """A team in the newest judged rollouts of a run.

    `success` is the mean of the metric. `headroom` holds, by agent, the mean of what the metric lacks (1 - value) in
    rollouts in which a verdict blames the agent: where verdicts are right, no fix of this agent alone gives more. One
    rollout may count for several agents. `unblamed` is what it lacks where nobody is blamed: tools, tasks, or faults
    that the coach did not see. All have 95 % intervals by cluster of tasks. `unjudged` rollouts have no verdict with a
    score, or no result, and count nowhere. `usd` is None if a price is unknown; a machine of one's own costs nothing
    here.
    """

    split: Split
    metric: str
    rollouts: int
    tasks: int
    unjudged: int
    success: Interval
    headroom: Mapping[str, Interval]
    corrected: frozenset[str]
    """Agents for whose actions a coach wrote a better one."""
    unblamed: Interval
    usd_per_rollout: float | None
    seconds_per_rollout: float
    seconds_per_iteration: float | None
    """Mean duration of an iteration of training; None if the run has none."""


def read_evidence(run: Path, *, metric: str, agents: Sequence[str]) -> Evidence:
    """Read the evidence of the training rollouts of `run`, or of its held-out ones if only these are judged.

    Raises:
        RunError: the run is a search of prompts, or holds no rollouts with a result and a verdict.
    """
    with RunReader(run) as reader:
        if reader.events(TEAM_EVENT) or any(
            event.body.get("round") is None for event in reader.events(CANDIDATE_EVENT)
        ):
            raise RunError(f"{run} holds rollouts of many teams, as a search does: name a run of one team")
        if all(row.status == "open" for row in reader.trajectories):
            raise RunError(f"{run} holds no rollouts that ended, so nothing can be advised")
        iterations = list(reader.iterations)
        remedy = "--coach OFFER" if reader.counts("train") else "--coach OFFER --split eval"
        split, played = _judged_split(reader)
    known = [one for one in played if counting_verdicts(one) and _value(one, metric) is not None]
    if not known:
        raise RunError(
            f"{run} holds no rollouts that have a verdict with a score and a result ({metric}), so whom to change "
            f"cannot be told; for verdicts: mappa judge {run} {remedy}"
        )
    lacks = [1.0 - _known_value(one, metric) for one in known]
    clusters = [_cluster(one) for one in known]
    guilty = [blamed_agents(one) for one in known]
    return Evidence(
        split=split,
        metric=metric,
        rollouts=len(known),
        tasks=len({one.task.id for one in known}),
        unjudged=len(played) - len(known),
        success=share_interval([1.0 - lack for lack in lacks], clusters),
        headroom={agent: _share(lacks, [agent in names for names in guilty], clusters) for agent in agents},
        corrected=frozenset(agent for one in known for agent in _corrected_agents(one)),
        unblamed=_share(lacks, [not names for names in guilty], clusters),
        usd_per_rollout=mean_usd(known),
        seconds_per_rollout=fmean(one.seconds for one in known),
        seconds_per_iteration=fmean(one.total_seconds for one in iterations) if iterations else None,
    )


def _judged_split(reader: RunReader) -> tuple[Split, list[Trajectory]]:
    """Training rollouts, or held-out ones where only these are judged."""
    played = _newest(reader, "train")
    return ("train", played) if any(map(counting_verdicts, played)) else ("eval", _newest(reader, "eval"))


def blamed_agents(trajectory: Trajectory) -> frozenset[str]:
    """Agents that a verdict blames: the one that it names, or else the one that acted if it took points off."""
    verdicts = counting_verdicts(trajectory)
    found = set()
    for step in trajectory.steps:
        verdict = verdicts.get(step.id)
        if verdict is None or verdict.score is None or verdict.blame == NOBODY:
            continue
        if verdict.blame is not None:
            found.add(verdict.blame)
        elif verdict.score < MAX_SCORE:
            found.add(step.agent)
    return frozenset(found)


def _corrected_agents(trajectory: Trajectory) -> Iterator[str]:
    verdicts = counting_verdicts(trajectory)
    for step in trajectory.steps:
        if step.id in verdicts and (verdicts[step.id].correction or "").strip():
            yield step.agent


def mean_usd(trajectories: Sequence[Trajectory]) -> float | None:
    """Mean price of a rollout in US dollars, coaches included; None if the price of a call is unknown."""
    usages = [step.completion.usage for one in trajectories for step in one.steps]
    usages += [verdict.usage for one in trajectories for verdict in one.verdicts if not verdict.replayed]
    prices = [usage.usd for usage in usages if usage is not None]
    known = [usd for usd in prices if usd is not None]
    return sum(known) / len(trajectories) if len(known) == len(prices) else None


def _newest(reader: RunReader, split: Split) -> list[Trajectory]:
    names = [row.id for row in reader.trajectories.where(split=split) if row.status != "open"]
    return [reader.trajectory(name) for name in islice(reversed(names), MAX_ROLLOUTS)]


def _value(trajectory: Trajectory, metric: str) -> float | None:
    """The metric of a rollout; None for one that was lost or, as in imported logs, has no result."""
    if trajectory.error is None and metric not in trajectory.outcome:
        return None
    return metric_value(trajectory, metric)


def _known_value(trajectory: Trajectory, metric: str) -> float:
    value = _value(trajectory, metric)
    assert value is not None  # the caller selected by it
    return value


def _cluster(trajectory: Trajectory) -> str:
    task = trajectory.task
    return f"task {task.id}" if task.cluster is None else f"cluster {task.cluster}"


def _share(lacks: Iterable[float], counts: Iterable[bool], clusters: Sequence[str]) -> Interval:
    return share_interval([lack * count for lack, count in zip(lacks, counts, strict=True)], clusters)
