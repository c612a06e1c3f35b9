"""Build the experience of one iteration: one row per action of a trained policy, ragged, in canonical order."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from mappa_core.credit.ragged import element_indices, lengths_to_offsets
from mappa_core.credit.rewards import SCORED_PHASES, compute_rewards, last_scores
from mappa_core.experience import Demonstrations, Experience
from mappa_core.protocols import Rewards, Shaper
from mappa_core.records import Float32, Int32, Int64, Step, Trajectory

K = TypeVar("K")
_Scalar = TypeVar("_Scalar", bound=np.generic)
_PER_TOKEN = frozenset({"tokens", "version", "logprobs", "old_logprobs", "ref_logprobs", "teacher_logprobs", "values"})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExperienceBuilder:
    """Builds the experience of judged trajectories: their rewards by `compute_rewards`, then `build_experience`."""

    reward: Mapping[str, float]
    """Weight of a verdict by phase (`coach.reward`)."""
    shapers: Sequence[Shaper]
    policies: Mapping[str, str]
    trained: frozenset[str]
    metric: str

    def build(self, trajectories: Sequence[Trajectory]) -> Experience:
        """Build the experience of the trajectories of one iteration."""
        rewards = [compute_rewards(trajectory, self.reward, self.shapers) for trajectory in trajectories]
        return build_experience(trajectories, rewards, self.policies, self.trained, self.metric)


def build_experience(
    trajectories: Sequence[Trajectory],
    rewards: Sequence[Rewards],
    policies: Mapping[str, str],
    trained: Collection[str],
    metric: str,
) -> Experience:
    """Build one row per action of the `trained` policies, sorted by trajectory id and then by position.

    `rewards` has one reward per step; None gives reward NaN and weight 0. `policies` maps agents to policies. Actions
    without tokens (policies behind an API) are left out; those before a trajectory's error are included. The column
    `outcome` holds the outcome `metric`, NaN for trajectories without it. Raises ValueError for inconsistent records (a
    bug in a sampler, a shaper or the caller).
    """
    agents = tuple(agent for agent, policy in policies.items() if policy in trained)
    names = tuple(dict.fromkeys(policies[agent] for agent in agents))
    rows = list(_rows(trajectories, rewards, agents, policies))
    steps = [step for _, step, _ in rows]
    arrays = [_sampled_arrays(step) for step in steps]
    tokens, prompts = [one[0] for one in arrays], [one[1] for one in arrays]
    trajectory_ids, trajectory = _number_keys([trajectory.id for trajectory, _, _ in rows])
    tasks, task = _number_keys([trajectory.task.id for trajectory, _, _ in rows])
    strata, stratum = _number_keys([trajectory.task.stratum for trajectory, _, _ in rows])
    _, group = _number_keys([(trajectory.task.id, step.agent, step.turn) for trajectory, step, _ in rows])
    return Experience(
        agents=agents,
        policies=names,
        trajectories=trajectory_ids,
        tasks=tasks,
        strata=strata,
        steps=tuple(step.id for step in steps),
        agent=np.array([agents.index(step.agent) for step in steps], dtype=np.int32),
        policy=np.array([names.index(step.policy) for step in steps], dtype=np.int32),
        trajectory=trajectory,
        task=task,
        group=group,
        stratum=stratum,
        position=np.array([step.position for step in steps], dtype=np.int32),
        turn=np.array([step.turn for step in steps], dtype=np.int32),
        truncated=np.array([step.truncated for step in steps], dtype=np.bool_),
        temperature=np.array([step.completion.temperature for step in steps], dtype=np.float32),
        outcome=np.array([one.outcome.get(metric, math.nan) for one, _, _ in rows], dtype=np.float32),
        reward=np.array([math.nan if points is None else points for _, _, points in rows], dtype=np.float32),
        weight=np.array([points is not None for _, _, points in rows], dtype=np.float32),
        tokens=_concatenate(tokens, np.int32),
        offsets=_offsets(tokens),
        version=_concatenate([one[3] for one in arrays], np.int32),
        logprobs=_concatenate([one[2] for one in arrays], np.float32),
        prompt_tokens=_concatenate(prompts, np.int32),
        prompt_offsets=_offsets(prompts),
        scores=_scores(rows),
        finished=np.array([trajectory.error is None for trajectory, _, _ in rows], dtype=np.bool_),
        **_sampling_masks(steps, tokens),
    )


def select_rows(experience: Experience, rows: Int64) -> Experience:
    """Return the experience of the distinct `rows`, in the given order, with the same names and indices into them."""
    tokens = element_indices(experience.offsets, rows)
    columns: dict[str, object] = {
        "steps": tuple(experience.steps[row] for row in rows),
        "offsets": lengths_to_offsets(experience.lengths[rows]),
        "prompt_tokens": experience.prompt_tokens[element_indices(experience.prompt_offsets, rows)],
        "prompt_offsets": lengths_to_offsets(np.diff(experience.prompt_offsets)[rows]),
    }
    if experience.mask_tokens is not None and experience.mask_offsets is not None:
        columns["mask_tokens"] = experience.mask_tokens[element_indices(experience.mask_offsets, tokens)]
        columns["mask_offsets"] = lengths_to_offsets(np.diff(experience.mask_offsets)[tokens])
    for column in fields(Experience):
        values = getattr(experience, column.name)
        if column.name not in columns and isinstance(values, np.ndarray):
            columns[column.name] = values[tokens if column.name in _PER_TOKEN else rows]
    if experience.demonstrations is not None:
        columns["demonstrations"] = _select_demonstrations(experience.demonstrations, rows)
    return replace(experience, **columns)  # type: ignore[arg-type]


def _select_demonstrations(given: Demonstrations, rows: Int64) -> Demonstrations:
    """Return the demonstrations of `rows`, renumbered by their positions in `rows`."""
    order = np.argsort(rows)
    place = np.searchsorted(rows, given.row, sorter=order)
    known = place < len(rows)
    known[known] = rows[order[place[known]]] == given.row[known]
    chosen = np.flatnonzero(known)
    chosen = chosen[np.argsort(order[place[chosen]], kind="stable")]
    return Demonstrations(
        row=order[place[chosen]].astype(np.int32),
        tokens=given.tokens[element_indices(given.offsets, chosen)],
        offsets=lengths_to_offsets(np.diff(given.offsets)[chosen]),
    )


def _rows(
    trajectories: Sequence[Trajectory], rewards: Sequence[Rewards], agents: tuple[str, ...], policies: Mapping[str, str]
) -> Iterator[tuple[Trajectory, Step, float | None]]:
    """Iterate over the actions that become rows, in canonical order."""
    if len({trajectory.id for trajectory in trajectories}) != len(trajectories):
        raise ValueError("two trajectories of one iteration have the same id")
    for trajectory, given in sorted(zip(trajectories, rewards, strict=True), key=lambda pair: pair[0].id):
        for step, reward in sorted(zip(trajectory.steps, given, strict=True), key=lambda pair: pair[0].position):
            if step.agent not in agents or step.completion.tokens is None:
                continue
            if step.policy != policies[step.agent]:
                raise ValueError(f"step {step.id} was sampled by {step.policy}, not by {policies[step.agent]}")
            if reward is not None and not math.isfinite(reward):
                raise ValueError(f"the reward of step {step.id} is {reward}; a missing reward is None")
            yield trajectory, step, reward


def _scores(rows: Sequence[tuple[Trajectory, Step, float | None]]) -> Float32:
    by_trajectory = {trajectory.id: last_scores(trajectory) for trajectory, _, _ in rows}
    scores = [[by_trajectory[one.id].get((step.id, phase)) for phase in SCORED_PHASES] for one, step, _ in rows]
    return np.array(scores, dtype=np.float32).reshape(-1, len(SCORED_PHASES))  # None becomes NaN


def _sampled_arrays(step: Step) -> tuple[Int32, Int32, NDArray[np.float32], Int32]:
    """Return the tokens and prompt tokens of an action, and the log-probabilities and policy versions of its tokens."""
    done, spans = step.completion, step.completion.versions
    if done.tokens is None or not len(done.tokens):
        raise ValueError(f"step {step.id} sampled no token; a completion has at least one")
    if done.prompt_tokens is None or not len(done.prompt_tokens):
        raise ValueError(f"step {step.id} has no prompt tokens, so its first token has nothing to follow")
    edges = [0, *chain.from_iterable((span.start, span.end) for span in spans), len(done.tokens)]
    if edges[::2] != edges[1::2]:
        raise ValueError(f"step {step.id}: the spans of its versions do not tile its {edges[-1]} tokens")
    if done.logprobs is None or len(done.logprobs) != len(done.tokens):
        raise ValueError(f"step {step.id} needs one log-probability of the sampler per token")
    versions = np.array([span.version for span in spans], np.int32)
    return done.tokens, done.prompt_tokens, done.logprobs, np.repeat(versions, [one.end - one.start for one in spans])


def _sampling_masks(steps: Sequence[Step], tokens: Sequence[Int32]) -> dict[str, Any]:
    """Return the columns of sampling masks; none if every token was chosen from all."""
    sizes, kept = [np.zeros(len(one), np.int32) for one in tokens], []
    for row, step in enumerate(steps):
        done = step.completion
        if done.mask_tokens is None or done.mask_sizes is None:
            continue
        if len(done.mask_sizes) != len(sizes[row]) or done.mask_sizes.sum() != len(done.mask_tokens):
            raise ValueError(f"step {step.id}: its sampling mask has not one size per token, or other sizes than ids")
        sizes[row] = done.mask_sizes
        kept.append(done.mask_tokens)
    if not kept:
        return {}
    return {
        "mask_tokens": _concatenate(kept, np.int32),
        "mask_offsets": lengths_to_offsets(_concatenate(sizes, np.int32).astype(np.int64)),
    }


def _number_keys(keys: Sequence[K]) -> tuple[tuple[K, ...], Int32]:
    """Return the distinct keys in order of first appearance, and the index of each key among them."""
    numbers: dict[K, int] = {}
    index = [numbers.setdefault(key, len(numbers)) for key in keys]
    return tuple(numbers), np.array(index, dtype=np.int32)


def _concatenate(arrays: Sequence[NDArray[_Scalar]], dtype: type[_Scalar]) -> NDArray[_Scalar]:
    return np.concatenate([np.empty(0, dtype), *arrays], dtype=dtype)


def _offsets(arrays: Sequence[Int32]) -> Int64:
    return lengths_to_offsets(np.array([len(array) for array in arrays], dtype=np.int64))
