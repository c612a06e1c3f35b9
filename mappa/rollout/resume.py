"""Resumes recorded trajectories of an iteration.

In an interrupted iteration, trajectories lost to tool failures continue where they failed; in an evaluation also those
in which the workflow failed, as it may have been mended. Their actions then fall into other waves, so its recorded
steps are not sampled again for comparison, in this resume or a later one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from mappa.rollout.replay import Replay
from mappa.rollout.team import Job
from mappa.store.writer import Store
from mappa_core.errors import ToolError, WorkflowError
from mappa_core.records import Trajectory

CONTINUED_EVENT = "played_on"  # Lists the lost trajectories of an iteration that are continued.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ResumedIteration:
    """Trajectories of an iteration that an earlier process began, by id: `replays` for the stages, and those that are
    `finished` for good. `resample`: whether sampling recorded steps again gives the recorded tokens."""

    replays: Mapping[str, Replay] = field(default_factory=dict)
    finished: Mapping[str, Trajectory] = field(default_factory=dict)
    resample: bool = True

    def trajectories(self, jobs: Sequence[Job]) -> tuple[Trajectory, ...] | None:
        """The recorded trajectories of `jobs`; None unless all of them finished for good."""
        if any(job.id not in self.finished for job in jobs):
            return None
        return tuple(replace(self.finished[job.id], task=job.task) for job in jobs)


def resume_iteration(store: Store, split: str, iteration: int, *, is_consumed: bool) -> ResumedIteration:
    """Load the recorded trajectories of an iteration. `is_consumed`: it was learned from, or counted, so lost
    trajectories stay lost; otherwise an event records which of them are continued."""
    recorded = store.load_recorded(split, iteration)
    begun = {name: record.trajectory for name, record in recorded.items()}
    lost_kinds = [ToolError.__name__]
    if split == "eval" and not is_consumed:
        lost_kinds.append(WorkflowError.__name__)
    # By prefix, as the kind of a workflow's error also names the class of what it raised.
    lost = sorted(
        name
        for name, trajectory in begun.items()
        if trajectory.error is not None and trajectory.error.kind.startswith(tuple(lost_kinds))
    )
    # Before anything is played on: a kill right after would leave no other trace of it.
    if lost and not is_consumed:
        store.record_event(CONTINUED_EVENT, split=split, iteration=iteration, trajectories=lost)
    continued = {(event.body["split"], event.body["iteration"]) for event in store.events(CONTINUED_EVENT)}
    replays, finished = {}, {}
    for name, record in recorded.items():
        trajectory = record.trajectory
        stays_lost = is_consumed and name in lost
        replays[name] = Replay(
            steps=trajectory.steps,
            verdicts=trajectory.verdicts,
            lost=trajectory.error if stays_lost else None,
        )
        if record.finished and (is_consumed or name not in lost):
            finished[name] = trajectory
    return ResumedIteration(replays=replays, finished=finished, resample=(split, iteration) not in continued)
