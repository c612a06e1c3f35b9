"""What agents hand on to each other: which files were made, missing or broken, and what that cost downstream."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from mappa_core.records import Breach, Role, Step, Trajectory
from mappa_core.rollout.lost import is_lost
from mappa_core.tools.workspace import lineage

OUTPUTS = ("missing_output", "broken_output")
INPUTS = ("missing_input", "broken_input")


@dataclass(frozen=True, slots=True, kw_only=True)
class Handoff:
    """One file of the team's contract, over the `rollouts` in which it was due.

    In `made` of them an action wrote it, the last time one of the agent that `made_by` counts. In `missing` it was not
    there when it was due; in `broken` it was and could not be used, for `reasons`; in `fine` neither. `metric_fine` is
    the mean of the workflow's metric over these (a rollout that was not finished counts 0), `metric_flawed` over the
    others; None where there are none. In `failed_first` of the rollouts that did not succeed it was the first file with
    a flaw, be it along with others of the same action.
    """

    path: str
    makers: tuple[str, ...]
    needed_by: tuple[str, ...]
    rollouts: int
    made: int
    made_by: Mapping[str, int]
    missing: int
    broken: int
    reasons: Mapping[str, int]
    fine: int
    metric_fine: float | None
    metric_flawed: float | None
    failed_first: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """One file in one rollout: whose action wrote it last, and the flaws that were found `at` a position. Without flaws
    it was fine."""

    writer: str | None
    flaws: Sequence[Breach] = field(default=())
    at: int = 0

    @property
    def is_missing(self) -> bool:
        return any(flaw.kind in ("missing_input", "missing_output") for flaw in self.flaws)

    @property
    def reasons(self) -> frozenset[str]:
        """Why it could not be used."""
        return frozenset(flaw.reason for flaw in self.flaws if flaw.reason)


def handoffs(trajectories: Sequence[Trajectory], roles: Mapping[str, Role], metric: str) -> tuple[Handoff, ...]:
    """Every file that a role produces or needs, in the order of the roles. Files that come with the tasks are left out,
    and so are rollouts that a tool's machinery lost."""
    played = [one for one in trajectories if not is_lost(one.error)]
    given = {path for one in played for path in one.task.files}
    named = dict.fromkeys(path for role in roles.values() for path in (*role.needs, *role.produces))
    paths = [path for path in named if path not in given]
    if not paths:
        return ()
    passages = [_passages(one, roles, paths) for one in played]
    values = [_value(one, metric) for one in played]
    first = Counter(
        path
        for found, value in zip(passages, values, strict=True)
        for path in (_first_flawed(found) if value < 1.0 else ())
    )
    return tuple(
        _handoff(
            path,
            roles,
            [(found[path], value) for found, value in zip(passages, values, strict=True) if path in found],
            failed_first=first[path],
        )
        for path in paths
    )


def _handoff(
    path: str, roles: Mapping[str, Role], seen: Sequence[tuple[Passage, float]], *, failed_first: int
) -> Handoff:
    flawed = [passage for passage, _ in seen if passage.flaws]
    writers = [passage.writer for passage, _ in seen if passage.writer is not None]
    missing = sum(passage.is_missing for passage in flawed)
    return Handoff(
        path=path,
        makers=tuple(agent for agent, role in roles.items() if path in role.produces),
        needed_by=tuple(agent for agent, role in roles.items() if path in role.needs),
        rollouts=len(seen),
        made=len(writers),
        made_by=Counter(writers),
        missing=missing,
        broken=len(flawed) - missing,
        reasons=Counter(reason for passage in flawed for reason in sorted(passage.reasons)),
        fine=len(seen) - len(flawed),
        metric_fine=_mean([value for passage, value in seen if not passage.flaws]),
        metric_flawed=_mean([value for passage, value in seen if passage.flaws]),
        failed_first=failed_first,
    )


def _value(trajectory: Trajectory, metric: str) -> float:
    if trajectory.error is not None and metric not in trajectory.outcome:
        return 0.0
    return trajectory.outcome[metric]


def _passages(trajectory: Trajectory, roles: Mapping[str, Role], paths: Sequence[str]) -> dict[str, Passage]:
    """How the files fared that were due in this rollout."""
    history = lineage(trajectory.steps)
    agent_of = {step.id: step.agent for step in trajectory.steps}
    found = {}
    for path in paths:
        changes = history.get(path, ())
        written = [agent_of[step] for step, change in changes if change.kind != "deleted"]
        is_there = bool(changes) and changes[-1][1].kind != "deleted"
        looked = _looked_at(path, trajectory, roles, is_there=is_there)
        if looked is not None:
            found[path] = Passage(writer=written[-1] if written else None, flaws=looked[1], at=looked[0])
    return found


def _looked_at(
    path: str, trajectory: Trajectory, roles: Mapping[str, Role], *, is_there: bool
) -> tuple[int, Sequence[Breach]] | None:
    """The flaws that were found when its maker acted for the last time, else when it was first needed after that, and
    the position. None where it was not due: nobody had to make it, or the rollout ended before."""
    makers = [step for step in trajectory.steps if path in roles[step.agent].produces]
    made_at = makers[-1].position if makers else -1
    users = [step for step in trajectory.steps if path in roles[step.agent].needs and step.position > made_at]
    for step in makers[-1:]:
        if flaws := _flaws(step, path, OUTPUTS):
            return step.position, flaws
    for step in users[:1]:
        return step.position, _flaws(step, path, INPUTS)
    if not makers or (trajectory.error is not None and trajectory.steps[-1].agent == makers[-1].agent):
        return None
    if is_there:
        return made_at, ()
    return made_at, (Breach(agent=makers[-1].agent, kind="missing_output", path=path),)


def _flaws(step: Step, path: str, kinds: Sequence[str]) -> tuple[Breach, ...]:
    return tuple(breach for breach in step.breaches if breach.path == path and breach.kind in kinds)


def _first_flawed(passages: Mapping[str, Passage]) -> list[str]:
    """The files whose flaws were found first."""
    flawed = {path: passage.at for path, passage in passages.items() if passage.flaws}
    return [path for path, at in flawed.items() if at == min(flawed.values())]


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None
