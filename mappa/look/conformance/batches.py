"""All batches that a decision process can sample, as a run would build their Experience, and an estimator's expected
gradient over them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from itertools import product
from math import log, prod
from typing import Any, Literal

import numpy as np

from mappa.look.arrays import Float64
from mappa.look.conformance.decision_process import (
    MAX_BATCHES,
    DecisionProcess,
    PossibleTrajectory,
    possible_trajectories,
)
from mappa.look.conformance.exact_gradient import exact_values, reference_logprobs
from mappa_core import Completion, Estimator, Experience, Message, Shaper, Step, Task, Trajectory, Verdict
from mappa_core.credit.build_experience import ExperienceBuilder
from mappa_core.records import VersionSpan

Denominator = Literal["trajectories", "tokens", "rows"]
METRIC = "solved"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PossibleBatch:
    """A batch and its probability. `scores` are d log pi(token) / d logits of every sampled token, (N, P)."""

    chance: float
    experience: Experience
    scores: Float64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Tokens:
    """Exact per-token quantities of one action."""

    scores: Float64  # (T, P)
    values: Float64  # (T,)
    old: Float64
    reference: Float64


@lru_cache(maxsize=32)
def possible_batches(process: DecisionProcess, shapers: tuple[Shaper, ...] = ()) -> tuple[PossibleBatch, ...]:
    """Enumerate every batch of `process.samples` trajectories per task. Their probabilities add up to 1.

    Verdicts become rewards by `shapers`, and rewards an Experience by the code that a run uses. The Experience is
    scored: old log-probabilities are the policy's, the reference is uniform over each table, and `values` are exact. It
    is read-only.

    Raises:
        ValueError: there are too many batches.
    """
    ways = [possible_trajectories(root) for root in process.tasks for _ in range(process.samples)]
    count = prod(len(way) for way in ways)
    if count > MAX_BATCHES:
        raise ValueError(
            f"{process.name}: {count} batches are too many; take fewer samples, actions or verdicts missing"
        )
    tokens: dict[str, _Tokens] = {}
    slots = []
    for slot, way in enumerate(ways):
        one = []
        for number, play in enumerate(way):
            trajectory = _trajectory(process, *divmod(slot, process.samples), number, play)
            tokens |= _tokens(process, trajectory, play)
            one.append((play.chance, trajectory))
        slots.append(one)
    policies = process.policies
    builder = ExperienceBuilder(
        reward={"live": 1.0}, shapers=shapers, policies=policies, trained=frozenset(policies.values()), metric=METRIC
    )
    return tuple(_batch(builder, drawn, tokens) for drawn in product(*slots))


def expected_gradient(
    process: DecisionProcess,
    estimator: Estimator,
    *,
    shapers: tuple[Shaper, ...] = (),
    mean: Denominator = "trajectories",
    state: Mapping[str, Any] | None = None,
) -> Float64:
    """Compute `E[sum_t w_t A_t d log pi(a_t) / d logits / count]`, (P,), over every batch, in float64.

    Args:
        mean: the meaning of `count`. `trajectories`: of the batch, a fixed number. Or, per policy, a number that varies
            between batches: `tokens` in rows of weight above 0, or such `rows`, with the mean over the tokens of each
            row.
        state: the estimator's state at the start of every batch; None: empty.
    """
    total = np.zeros(len(process.parameters))
    for batch in possible_batches(process, shapers):
        given, _ = estimator(batch.experience, state or {})
        total += batch.chance * gradient_of(process, batch, given.advantages.astype(np.float64), mean)
    return total


def gradient_of(process: DecisionProcess, batch: PossibleBatch, advantages: Float64, mean: Denominator) -> Float64:
    """Compute the gradient (P,) that advantages (N,) give on one batch."""
    experience = batch.experience
    weights = experience.token_weight.astype(np.float64)
    if mean == "trajectories":
        weights = weights / process.trajectories
    else:
        per_row = experience.lengths if mean == "tokens" else np.ones(len(experience.reward))
        within = np.ones(len(weights)) if mean == "tokens" else experience.lengths[experience.row_of_token]
        counts = np.bincount(experience.policy, experience.weight * per_row, minlength=len(experience.policies))
        weights = weights / within / np.maximum(counts, 1.0)[experience.policy[experience.row_of_token]]
    gradient: Float64 = (weights * advantages) @ batch.scores
    return gradient


def _batch(
    builder: ExperienceBuilder, drawn: Sequence[tuple[float, Trajectory]], tokens: Mapping[str, _Tokens]
) -> PossibleBatch:
    chances, trajectories = zip(*drawn, strict=True)
    experience = builder.build(trajectories)
    known = [tokens[step] for step in experience.steps]
    experience = replace(
        experience,
        old_logprobs=np.concatenate([one.old for one in known]).astype(np.float32),
        ref_logprobs=np.concatenate([one.reference for one in known]).astype(np.float32),
        values=np.concatenate([one.values for one in known]).astype(np.float32),
    )
    for column in fields(experience):
        values = getattr(experience, column.name)
        if isinstance(values, np.ndarray):
            values.flags.writeable = False
    return PossibleBatch(
        chance=prod(chances), scores=np.concatenate([one.scores for one in known]), experience=experience
    )


def _trajectory(process: DecisionProcess, task: int, sample: int, number: int, play: PossibleTrajectory) -> Trajectory:
    """Build the record of a possible trajectory. Its id names the slot; the ids of its steps also name the
    alternative."""
    name = f"task{task:02d}.{sample:02d}"
    steps = tuple(_step(process, f"{name}.{number}.{place}", play, place) for place in range(len(play.choices)))
    return Trajectory(
        id=name,
        task=Task(id=f"task{task:02d}", prompt=""),
        sample=sample,
        iteration=0,
        steps=steps,
        verdicts=tuple(_verdict(step, play, place) for place, step in enumerate(steps)),
        outcome={METRIC: play.outcome},
    )


def _step(process: DecisionProcess, name: str, play: PossibleTrajectory, place: int) -> Step:
    decision, action = play.choices[place]
    agents = [one.agent for one, _ in play.choices[:place]]
    return Step(
        id=name,
        agent=decision.agent,
        turn=agents.count(decision.agent),
        position=place,
        policy=process.policies[decision.agent],
        messages=(),
        reply=Message(role="assistant", content=""),
        completion=Completion(
            text="",
            prompt_tokens=np.array(decision.prompt, np.int32),
            tokens=np.array(action.tokens, np.int32),
            logprobs=np.log(action.chances).astype(np.float32),
            finish="length" if action.truncated else "stop",
            versions=(VersionSpan(version=0, start=0, end=len(action.tokens)),),
        ),
    )


def _verdict(step: Step, play: PossibleTrajectory, place: int) -> Verdict:
    judgement = Verdict.scored(play.choices[place][1].points, "") if play.judged[place] else Verdict.failed("by chance")
    return replace(judgement, id=f"{step.id}.verdict", step=step.id, coach="table")


def _tokens(process: DecisionProcess, trajectory: Trajectory, play: PossibleTrajectory) -> dict[str, _Tokens]:
    return {
        step.id: _Tokens(
            scores=process.scores(decision, action),
            values=exact_values(decision, action),
            old=np.array([log(chance) for chance in action.chances]),
            reference=reference_logprobs(process, decision, action),
        )
        for step, (decision, action) in zip(trajectory.steps, play.choices, strict=True)
    }
