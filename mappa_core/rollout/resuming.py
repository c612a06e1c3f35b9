"""What a run that goes on does with the trajectories that it finds recorded.

What was learned from, or counted, is replayed as it was. In an iteration that was interrupted before, trajectories that
a tool's machinery lost are played on from where they were lost. They then ask for actions in other waves than before:
recorded steps of such an iteration are not sampled again to be compared, on this resume or a later one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mappa_core.records import Trajectory
from mappa_core.rollout.lost import is_lost
from mappa_core.rollout.replay import Replay
from mappa_core.rollout.team import Job
from mappa_core.store.database import Recorded, Store

PLAYED_ON = "played_on"
"""The event that names the lost trajectories of an iteration that are played on."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Resumed:
    """The trajectories of an iteration that were begun before, by id: `replays`, as stages play them again, and those
    that `ended` for good. `resample`: whether recorded steps can be sampled again, and give what they gave."""

    replays: Mapping[str, Replay] = field(default_factory=dict)
    ended: Mapping[str, Recorded] = field(default_factory=dict)
    resample: bool = True

    def trajectory(self, job: Job) -> Trajectory | None:
        """The trajectory of a job that ended for good, without playing it again."""
        one = self.ended.get(job.id)
        if one is None:
            return None
        return Trajectory(
            id=job.id,
            task=job.task,
            sample=job.sample,
            iteration=job.iteration,
            steps=one.steps,
            verdicts=one.verdicts,
            outcome=one.outcome,
            error=one.error,
            seconds=one.seconds,
        )


def resume(store: Store, split: str, iteration: int, *, settled: bool) -> Resumed:
    """Take up what is recorded of an iteration. `settled`: it was learned from, or counted, so that what is lost stays
    so; else the store is told which trajectories will be played on."""
    recorded = store.recorded(split, iteration)
    lost = sorted(name for name, one in recorded.items() if is_lost(one.error))
    if lost and not settled:
        store.event(PLAYED_ON, split=split, iteration=iteration, trajectories=lost)
    told = [event.body for event in store.events(PLAYED_ON)]
    return Resumed(
        replays={name: _replay(one, settled) for name, one in recorded.items()},
        ended={name: one for name, one in recorded.items() if one.finished and (settled or not is_lost(one.error))},
        resample=not any((body["split"], body["iteration"]) == (split, iteration) for body in told),
    )


def _replay(recorded: Recorded, settled: bool) -> Replay:
    lost = recorded.error if settled and is_lost(recorded.error) else None
    return Replay(steps=recorded.steps, verdicts=recorded.verdicts, lost=lost)
