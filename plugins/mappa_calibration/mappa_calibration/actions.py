"""Scored actions as columns, and what a score is compared with. Shapes: n actions; points are 0-10."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from mappa_core import ConfigError, Step, Trajectory, Verdict
from mappa_core.coach import Phase

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]
Bool = NDArray[np.bool_]

AGENT, LENGTH = "agent", "length"
"""Stratifiers that every action has: who acted, and its sampled tokens."""
REFERENCE = "mappa_calibration.reference"
"""Name, among the members of a verdict, of the second judgement that it is compared with."""
CLUSTER_COUNT = 256  # Tasks are hashed into clusters, which bounds the size of the sums however long a run is.


def task_cluster(task: str) -> int:
    """The same in every process."""
    return int.from_bytes(hashlib.blake2b(task.encode(), digest_size=8).digest()) % CLUSTER_COUNT


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ActionColumns:
    """Scored actions of one phase and iteration. `prompt` numbers the prompts: actions of one number were sampled from
    the same agent and prompt."""

    agent: NDArray[np.object_]  # (n,)
    points: Float64  # (n,) before any correction
    reference: Float64  # (n,) a second judgement of the same action, NaN without one
    prompt: Int64  # (n,)
    cluster: Int64  # (n,)
    tokens: Float64  # (n,) sampled, NaN if the provider does not report them
    strata: Mapping[str, NDArray[np.object_]] = field(default_factory=dict)  # stratifier -> (n,), None without one
    unscored: NDArray[np.object_] | None = None  # (n,) why a second judgement has no score, None without one

    def select(self, mask: Bool) -> ActionColumns:
        """Return the actions of a `mask` (n,)."""
        names = ("agent", "points", "reference", "prompt", "cluster", "tokens")
        strata = {name: column[mask] for name, column in self.strata.items()}
        unscored = None if self.unscored is None else self.unscored[mask]
        return replace(self, **{name: getattr(self, name)[mask] for name in names}, strata=strata, unscored=unscored)

    def column(self, stratifier: str) -> NDArray[np.object_]:
        """Strata of the actions, (n,), None without one."""
        return self.agent if stratifier == AGENT else self.strata[stratifier]


def collect_actions(trajectories: Sequence[Trajectory], *, strata: Sequence[str]) -> dict[Phase, ActionColumns]:
    """Collect the scored actions by phase of their verdicts. Of several verdicts of one phase the last one counts, as
    in the reward. Raises ConfigError if actions are scored and none has one of the stratifiers `strata`."""
    there = {AGENT, LENGTH, *(name for trajectory in trajectories for step in trajectory.steps for name in step.strata)}
    every = {phase: _collect(trajectories, phase, strata) for phase in get_args(Phase)}
    found = {phase: columns for phase, columns in every.items() if len(columns.points)}
    if found and (unknown := sorted(set(strata) - there)):
        raise ConfigError(f"strata: no action has the stratifier {unknown[0]!r}; there is {', '.join(sorted(there))}")
    return found


def _collect(trajectories: Sequence[Trajectory], phase: Phase, strata: Sequence[str]) -> ActionColumns:
    rows: list[tuple[Step, float, Verdict | None, Trajectory]] = []
    for trajectory in trajectories:
        last = {verdict.step: verdict for verdict in trajectory.verdicts if verdict.phase == phase}
        for step in trajectory.steps:
            verdict = last.get(step.id)
            if verdict is None or verdict.score is None:
                continue
            again = next((member for member in verdict.members if member.coach == REFERENCE), None)
            raw = verdict.score if verdict.raw_score is None else verdict.raw_score
            rows.append((step, raw, again, trajectory))
    prompts: dict[object, int] = {}
    every = sorted({name for step, *_ in rows for name in step.strata} | (set(strata) - {AGENT, LENGTH}))
    return ActionColumns(
        agent=np.array([step.agent for step, *_ in rows], dtype=object),
        points=np.array([raw for _, raw, _, _ in rows]),
        reference=np.array([_score(again) for _, _, again, _ in rows]),
        prompt=np.array(
            [prompts.setdefault(_prompt(step, trajectory), len(prompts)) for step, *_, trajectory in rows], dtype=int
        ),
        cluster=np.array([task_cluster(trajectory.task.id) for *_, trajectory in rows], dtype=np.int64),
        tokens=np.array([sampled_tokens(step) for step, *_ in rows]),
        strata={name: np.array([step.strata.get(name) for step, *_ in rows], dtype=object) for name in every},
        unscored=np.array([_why_unscored(again) for _, _, again, _ in rows], dtype=object),
    )


def _score(again: Verdict | None) -> float:
    return math.nan if again is None or again.score is None else again.score


def _why_unscored(again: Verdict | None) -> str | None:
    if again is None or again.score is not None:
        return None
    first = (again.error or again.reasoning).strip().partition("\n")[0]
    return f"{again.status}: {first}"


def _prompt(step: Step, trajectory: Trajectory) -> tuple[object, ...]:
    return trajectory.task.id, step.agent, tuple((message.role, message.content) for message in step.messages)


def sampled_tokens(step: Step) -> float:
    """Tokens of an action, NaN if the provider does not report them."""
    completion = step.completion
    if completion.tokens is not None:
        return float(len(completion.tokens))
    count = None if completion.usage is None else completion.usage.completion_tokens
    return math.nan if count is None else float(count)
