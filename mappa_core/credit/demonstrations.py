"""Demonstrations from coaches' corrections, for the supervised loss term."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mappa_core.config.schema import SupervisedSection
from mappa_core.credit.ragged import concatenate_rows, rows_to_offsets
from mappa_core.experience import Demonstrations, Experience
from mappa_core.records import Int32, Step, Trajectory, Verdict

Encode = Callable[[str, str], Int32 | None]
"""Maps policy and text to the tokens of an action, as `Sampler.encode` does."""

USED = "used"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CollectedDemonstrations:
    """Demonstrations of an iteration, with `counts` of the corrections that were `used`, or skipped by reason:
    `no_row` (the policy is not trained), `no_reward` (the row has weight 0), `score` (above `max_score`),
    `truth` (the coach saw the ground truth, which the settings exclude), `same` (identical to the action), `thinking`
    (the agent thinks before it acts, a correction does not), `unwritable` (the policy cannot reproduce the text
    exactly), `too_long` (for the agent)."""

    demonstrations: Demonstrations
    counts: Mapping[str, int]


def collect_demonstrations(
    experience: Experience,
    trajectories: Sequence[Trajectory],
    phases: Mapping[str, float],
    settings: SupervisedSection,
    *,
    encode: Encode,
    max_tokens: Mapping[str, int],
    saw_truth: Collection[str],
) -> CollectedDemonstrations:
    """Collect the corrections of verdicts as demonstrations for the rows of `experience`.

    The verdicts are those that count for rewards: the last one of each phase of non-zero weight in `phases`
    (`coach.reward`). A correction longer than the agent's `max_tokens`, end-of-turn token included, is skipped, never
    truncated; so every demonstration fits the window after its prompt. `saw_truth`: agents whose coach saw the truth.
    """
    rows = {step: row for row, step in enumerate(experience.steps)}
    counts = Counter({USED: 0})
    by_row: dict[int, list[Int32]] = {}
    for step, verdict in _corrections(trajectories, phases):
        row = rows.get(step.id)
        if row is None:
            counts["no_row"] += 1
            continue
        reason = _reason_to_skip(verdict, step, experience.weight[row] > 0, settings, saw_truth)
        if reason is not None:
            counts[reason] += 1
            continue
        tokens = encode(step.policy, str(verdict.correction))
        if tokens is None:
            counts["unwritable"] += 1
        elif len(tokens) > max_tokens[step.agent]:
            counts["too_long"] += 1
        else:
            counts[USED] += 1
            by_row.setdefault(row, []).append(tokens)
    return CollectedDemonstrations(demonstrations=_to_ragged(by_row), counts=dict(counts))


def _corrections(trajectories: Sequence[Trajectory], phases: Mapping[str, float]) -> Iterator[tuple[Step, Verdict]]:
    """Iterate over steps with a counting verdict that contains a correction; equal corrections of a step count once."""
    counted_phases = [phase for phase, weight in phases.items() if weight]
    for trajectory in trajectories:
        last = {(verdict.step, str(verdict.phase)): verdict for verdict in trajectory.verdicts}
        for step in trajectory.steps:
            by_correction: dict[str, Verdict] = {}
            for phase in counted_phases:
                verdict = last.get((step.id, phase))
                if verdict is not None and verdict.correction is not None and verdict.correction.strip():
                    by_correction[verdict.correction] = verdict
            for verdict in by_correction.values():
                yield step, verdict


def _reason_to_skip(
    verdict: Verdict, step: Step, has_weight: bool, settings: SupervisedSection, saw_truth: Collection[str]
) -> str | None:
    if not has_weight:
        return "no_reward"
    if verdict.score is None or verdict.score > settings.max_score:
        return "score"
    if step.agent in saw_truth and not settings.truth:
        return "truth"
    if str(verdict.correction).strip() == step.completion.text.strip():
        return "same"
    # It would teach the agent to act without thinking.
    if step.reply.reasoning is not None:
        return "thinking"
    return None


def _to_ragged(by_row: Mapping[int, Sequence[Int32]]) -> Demonstrations:
    pairs = [(row, tokens) for row in sorted(by_row) for tokens in by_row[row]]
    return Demonstrations(
        row=np.array([row for row, _ in pairs], dtype=np.int32),
        tokens=concatenate_rows([tokens for _, tokens in pairs], np.int32),
        offsets=rows_to_offsets(tokens for _, tokens in pairs),
    )
