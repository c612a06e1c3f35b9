"""Hand-offs of files between agents: which were made, missing or broken, and their effect on the outcome."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from mappa_core import Breach, Role, Step, ToolError, Trajectory

OUTPUT_BREACHES = ("missing_output", "broken_output")
INPUT_BREACHES = ("missing_input", "broken_input")


@dataclass(frozen=True, slots=True, kw_only=True)
class Handoff:
    """One file of the team's contract, over the `rollouts` in which it was due.

    In `made` rollouts an action wrote it; `made_by` counts the agents of the last such action. In `missing` it was
    absent when due, in `broken` present but unusable, for `reasons`, and in `fine` neither. `metric_fine` is the mean
    of the workflow's metric over the fine rollouts (an unfinished rollout counts 0), `metric_flawed` over the others;
    None if there are none. `failed_first` counts the unsuccessful rollouts in which it was the first flawed file,
    alone or together with others of the same action.
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
class RolloutFile:
    """One file in one rollout: the agent that wrote it last, and the flaws found `at` a position. No flaws mean that it
    was fine."""

    writer: str | None
    flaws: Sequence[Breach] = field(default=())
    at: int = 0

    @property
    def is_missing(self) -> bool:
        return any(flaw.kind in ("missing_input", "missing_output") for flaw in self.flaws)

    @property
    def reasons(self) -> frozenset[str]:
        """Why the file could not be used."""
        return frozenset(flaw.reason for flaw in self.flaws if flaw.reason)


def summarize_handoffs(
    trajectories: Sequence[Trajectory], roles: Mapping[str, Role], metric: str
) -> tuple[Handoff, ...]:
    """Summarize every file that a role produces or needs, in the order of the roles. Files that come with the tasks are
    left out, and so are rollouts lost to a failure of the tool infrastructure."""
    valid = [one for one in trajectories if one.error is None or one.error.kind != ToolError.__name__]
    given = {path for one in valid for path in one.task.files}
    named = dict.fromkeys(path for role in roles.values() for path in (*role.needs, *role.produces))
    paths = [path for path in named if path not in given]
    if not paths:
        return ()
    files_by_rollout = [_inspect_files(one, roles, paths) for one in valid]
    values = [_metric_value(one, metric) for one in valid]
    first = Counter(
        path
        for found, value in zip(files_by_rollout, values, strict=True)
        for path in (_first_flawed_files(found) if value < 1.0 else ())
    )
    return tuple(
        _summarize_file(
            path,
            roles,
            [(found[path], value) for found, value in zip(files_by_rollout, values, strict=True) if path in found],
            failed_first=first[path],
        )
        for path in paths
    )


def _summarize_file(
    path: str, roles: Mapping[str, Role], seen: Sequence[tuple[RolloutFile, float]], *, failed_first: int
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


def _metric_value(trajectory: Trajectory, metric: str) -> float:
    if trajectory.error is not None and metric not in trajectory.outcome:
        return 0.0
    return trajectory.outcome[metric]


def _inspect_files(trajectory: Trajectory, roles: Mapping[str, Role], paths: Sequence[str]) -> dict[str, RolloutFile]:
    """Inspect the files that were due in this rollout."""
    changes = [(step.agent, change) for step in trajectory.steps for result in step.results for change in result.files]
    found = {}
    for path in paths:
        kept = [(agent, change.kind != "deleted") for agent, change in changes if change.path == path]
        written = [agent for agent, was_kept in kept if was_kept]
        is_there = bool(kept) and kept[-1][1]
        flaws = _find_flaws(path, trajectory, roles, is_there=is_there)
        if flaws is not None:
            found[path] = RolloutFile(writer=written[-1] if written else None, flaws=flaws[1], at=flaws[0])
    return found


def _find_flaws(
    path: str, trajectory: Trajectory, roles: Mapping[str, Role], *, is_there: bool
) -> tuple[int, Sequence[Breach]] | None:
    """The flaws of a file with their position: those found when its maker acted last, else when it was first needed
    after that. None if it was not due: no role makes it, or the rollout ended before."""
    makers = [step for step in trajectory.steps if path in roles[step.agent].produces]
    made_at = makers[-1].position if makers else -1
    users = [step for step in trajectory.steps if path in roles[step.agent].needs and step.position > made_at]
    for step in makers[-1:]:
        if flaws := _matching_breaches(step, path, OUTPUT_BREACHES):
            return step.position, flaws
    for step in users[:1]:
        return step.position, _matching_breaches(step, path, INPUT_BREACHES)
    if not makers or (trajectory.error is not None and trajectory.steps[-1].agent == makers[-1].agent):
        return None
    if is_there:
        return made_at, ()
    return made_at, (Breach(agent=makers[-1].agent, kind="missing_output", path=path),)


def _matching_breaches(step: Step, path: str, kinds: Sequence[str]) -> tuple[Breach, ...]:
    return tuple(breach for breach in step.breaches if breach.path == path and breach.kind in kinds)


def _first_flawed_files(files_by_rollout: Mapping[str, RolloutFile]) -> list[str]:
    """The files whose flaws were found earliest."""
    flawed = {path: passage.at for path, passage in files_by_rollout.items() if passage.flaws}
    return [path for path, at in flawed.items() if at == min(flawed.values())]


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None
