"""Build the experience of one iteration: one row per action of a trained policy, ragged, in canonical order."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain
from typing import Any, TypeVar

import numpy as np

from mappa_core.config.schema import Overflow
from mappa_core.credit.overflow import settle_overflow
from mappa_core.credit.ragged import concatenate_rows, element_indices, lengths_to_offsets, rows_to_offsets
from mappa_core.credit.rewards import SCORED_PHASES, compute_rewards, last_scores
from mappa_core.experience import Demonstrations, Experience
from mappa_core.protocols import Rewards, Shaper
from mappa_core.records import Float32, Int32, Int64, Step, Trajectory

K = TypeVar("K")
_PER_TOKEN = frozenset({"tokens", "version", "logprobs", "old_logprobs", "ref_logprobs", "teacher_logprobs", "values"})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExperienceBuilder:
    """Builds the experience of judged trajectories: what an overflow is worth, their rewards by `compute_rewards`, then
    `build_experience`."""

    reward: Mapping[str, float]
    """Weight of a verdict by phase (`coach.reward`)."""
    shapers: Sequence[Shaper]
    policies: Mapping[str, str]
    trained: frozenset[str]
    metric: str
    overflow: Overflow = "unsolved"

    def settle(self, trajectories: Sequence[Trajectory]) -> Sequence[Trajectory]:
        """Return the trajectories as they are learned from, with what `overflow` says of prompts beyond the window."""
        if self.overflow == "unknown":
            return trajectories
        return [settle_overflow(trajectory, self.metric) for trajectory in trajectories]

    def build(self, trajectories: Sequence[Trajectory]) -> Experience:
        """Build the experience of the trajectories of one iteration."""
        trajectories = self.settle(trajectories)
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
    sampled = [_sampled_arrays(step) for step in steps]
    tokens = [arrays.tokens for arrays in sampled]
    prompts = [arrays.prompt_tokens for arrays in sampled]
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
        outcome=np.array([trajectory.outcome.get(metric, math.nan) for trajectory, _, _ in rows], dtype=np.float32),
        reward=np.array([math.nan if points is None else points for _, _, points in rows], dtype=np.float32),
        weight=np.array([points is not None for _, _, points in rows], dtype=np.float32),
        tokens=concatenate_rows(tokens, np.int32),
        offsets=rows_to_offsets(tokens),
        version=concatenate_rows([arrays.versions for arrays in sampled], np.int32),
        logprobs=concatenate_rows([arrays.logprobs for arrays in sampled], np.float32),
        prompt_tokens=concatenate_rows(prompts, np.int32),
        prompt_offsets=rows_to_offsets(prompts),
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
        # Ragged twice: rows hold tokens, and each token holds the ids that it was chosen from.
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
    # `searchsorted` finds a place for every row, also for one that is not among `rows`: past the end, or at another.
    is_selected = place < len(rows)
    is_selected[is_selected] = rows[order[place[is_selected]]] == given.row[is_selected]
    chosen = np.flatnonzero(is_selected)
    # Ascending by row, as in every experience; stable, so several demonstrations of a row keep their order.
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
    counts = Counter(trajectory.id for trajectory in trajectories)
    repeated = [name for name, count in counts.items() if count > 1]
    if repeated:
        raise ValueError(f"two trajectories of one iteration have the id {repeated[0]}; each has an id of its own")
    # Sorted, as trajectories end in any order: sums over rows would differ in their last bits.
    for trajectory, step_rewards in sorted(zip(trajectories, rewards, strict=True), key=lambda pair: pair[0].id):
        by_position = sorted(zip(trajectory.steps, step_rewards, strict=True), key=lambda pair: pair[0].position)
        for step, reward in by_position:
            if step.agent not in agents or step.completion.tokens is None:
                continue
            if step.policy != policies[step.agent]:
                raise ValueError(
                    f"step {step.id} was sampled by the policy {step.policy}, and its agent {step.agent} is trained as "
                    f"{policies[step.agent]}: its log-probabilities are those of other weights"
                )
            if reward is not None and not math.isfinite(reward):
                raise ValueError(f"the reward of step {step.id} is {reward}; a missing reward is None")
            yield trajectory, step, reward


def _scores(rows: Sequence[tuple[Trajectory, Step, float | None]]) -> Float32:
    scores_of = {trajectory.id: last_scores(trajectory) for trajectory, _, _ in rows}
    scores = []
    for trajectory, step, _ in rows:
        scores.append([scores_of[trajectory.id].get((step.id, phase)) for phase in SCORED_PHASES])
    # None becomes NaN; the shape is stated, because without rows there are no columns to infer.
    return np.array(scores, dtype=np.float32).reshape(-1, len(SCORED_PHASES))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _SampledArrays:
    """Arrays of one action of T tokens after a prompt of P."""

    tokens: Int32  # (T,)
    prompt_tokens: Int32  # (P,)
    logprobs: Float32  # (T,)
    versions: Int32  # (T,) of the weights that sampled each token


def _sampled_arrays(step: Step) -> _SampledArrays:
    """Check the arrays of an action. Raises ValueError if they do not fit one another."""
    completion, spans = step.completion, step.completion.versions
    if completion.tokens is None or not len(completion.tokens):
        raise ValueError(f"step {step.id} sampled no token; a completion has at least one")
    if completion.prompt_tokens is None or not len(completion.prompt_tokens):
        raise ValueError(f"step {step.id} has no prompt tokens, so its first token has nothing to follow")
    # 0, start, end, start, end, …, length: the spans tile the tokens if each edge that begins one ends another.
    edges = [0, *chain.from_iterable((span.start, span.end) for span in spans), len(completion.tokens)]
    if edges[::2] != edges[1::2]:
        raise ValueError(f"step {step.id}: the spans of its versions do not tile its {edges[-1]} tokens")
    if completion.logprobs is None or len(completion.logprobs) != len(completion.tokens):
        raise ValueError(f"step {step.id} needs one log-probability of the sampler per token")
    versions = np.array([span.version for span in spans], np.int32)
    return _SampledArrays(
        tokens=completion.tokens,
        prompt_tokens=completion.prompt_tokens,
        logprobs=completion.logprobs,
        versions=np.repeat(versions, [span.end - span.start for span in spans]),
    )


def _sampling_masks(steps: Sequence[Step], tokens: Sequence[Int32]) -> dict[str, Any]:
    """Return the columns of sampling masks; none if every token was chosen from all."""
    # A token without a mask has size 0, which stands for all ids.
    sizes = [np.zeros(len(row_tokens), np.int32) for row_tokens in tokens]
    masks = []
    for row, step in enumerate(steps):
        completion = step.completion
        if completion.mask_tokens is None or completion.mask_sizes is None:
            continue
        if len(completion.mask_sizes) != len(sizes[row]):
            raise ValueError(
                f"step {step.id}: its sampling mask has {len(completion.mask_sizes)} sizes for {len(sizes[row])} tokens"
            )
        if completion.mask_sizes.sum() != len(completion.mask_tokens):
            raise ValueError(
                f"step {step.id}: its sampling mask holds {len(completion.mask_tokens)} ids, and its sizes add up to "
                f"{completion.mask_sizes.sum()}"
            )
        sizes[row] = completion.mask_sizes
        masks.append(completion.mask_tokens)
    if not masks:
        return {}
    return {
        "mask_tokens": concatenate_rows(masks, np.int32),
        "mask_offsets": lengths_to_offsets(concatenate_rows(sizes, np.int32).astype(np.int64)),
    }


def _number_keys(keys: Sequence[K]) -> tuple[tuple[K, ...], Int32]:
    """Return the distinct keys in order of first appearance, and the index of each key among them."""
    numbers: dict[K, int] = {}
    index = [numbers.setdefault(key, len(numbers)) for key in keys]
    return tuple(numbers), np.array(index, dtype=np.int32)
