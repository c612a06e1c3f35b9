"""Corrections of coaches as demonstrations: the better actions that a supervised term learns from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mappa_core.config.schema import SupervisedSection
from mappa_core.credit.ragged import offsets_of
from mappa_core.experience import Demonstrations, Experience
from mappa_core.records import Int32, Step, Trajectory, Verdict

Encode = Callable[[str, str], Int32 | None]
"""Policy and text to the tokens of an action, as `Sampler.encode` gives them."""

USED = "used"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Corrected:
    """The demonstrations of an iteration. `counts` says what became of every correction: `used`, or why it was not.

    `no_row` (the policy is not trained), `no_reward` (the row has weight 0), `score` (above `max_score`), `truth` (its
    coach saw the truth, and that is not wanted), `same` (it is what the agent wrote), `thinking` (the agent thinks
    before it acts, a correction does not), `unwritable` (by the policy, to the letter), `too_long` (for the agent).
    """

    demonstrations: Demonstrations
    counts: Mapping[str, int]


def corrections(
    experience: Experience,
    trajectories: Sequence[Trajectory],
    phases: Mapping[str, float],
    settings: SupervisedSection,
    *,
    encode: Encode,
    max_tokens: Mapping[str, int],
    saw_truth: Collection[str],
) -> Corrected:
    """What verdicts would rather have seen, in place of the rows of `experience`.

    The verdicts are those that rewards are made of: in each phase of non-zero weight the one added last. A correction
    is taken whole or not at all: what is longer than an action of its agent may be is left out, never cut. As an action
    of that length fits the window after this prompt, so does every demonstration.

    Args:
        phases: `coach.reward`.
        max_tokens: what an action of each agent may sample, with the token that ends it.
        saw_truth: agents whose coach was shown the truth.
    """
    rows = {step: row for row, step in enumerate(experience.steps)}
    counts = Counter({USED: 0})
    found: dict[int, list[Int32]] = {}
    for step, verdict in _corrected(trajectories, phases):
        row = rows.get(step.id)
        if row is None:
            counts["no_row"] += 1
        elif why := _unwanted(verdict, step, experience.weight[row] > 0, settings, saw_truth):
            counts[why] += 1
        elif (tokens := encode(step.policy, str(verdict.correction))) is None:
            counts["unwritable"] += 1
        elif len(tokens) > max_tokens[step.agent]:
            counts["too_long"] += 1
        else:
            counts[USED] += 1
            found.setdefault(row, []).append(tokens)
    return Corrected(demonstrations=_ragged(found), counts=dict(counts))


def _corrected(trajectories: Sequence[Trajectory], phases: Mapping[str, float]) -> Iterator[tuple[Step, Verdict]]:
    """Steps with a verdict that counts and says what would have been better."""
    for trajectory in trajectories:
        last = {(verdict.step, str(verdict.phase)): verdict for verdict in trajectory.verdicts}
        for step in trajectory.steps:
            given = [last.get((step.id, phase)) for phase, weight in phases.items() if weight]
            wanted = {one.correction: one for one in given if one is not None and (one.correction or "").strip()}
            yield from ((step, verdict) for verdict in wanted.values())


def _unwanted(
    verdict: Verdict, step: Step, counts: bool, settings: SupervisedSection, saw_truth: Collection[str]
) -> str | None:
    """Why a correction is not learned from, however it is written. `counts`: the action's row does."""
    if not counts:
        return "no_reward"
    if verdict.score is None or verdict.score > settings.max_score:
        return "score"
    if step.agent in saw_truth and not settings.truth:
        return "truth"
    if str(verdict.correction).strip() == step.completion.text.strip():
        return "same"
    return "thinking" if step.reply.reasoning is not None else None


def _ragged(found: Mapping[int, Sequence[Int32]]) -> Demonstrations:
    """Demonstrations by row, in order of rows."""
    of_row = [(row, tokens) for row in sorted(found) for tokens in found[row]]
    return Demonstrations(
        row=np.array([row for row, _ in of_row], dtype=np.int32),
        tokens=np.concatenate([np.empty(0, np.int32), *(tokens for _, tokens in of_row)], dtype=np.int32),
        offsets=offsets_of(np.array([len(tokens) for _, tokens in of_row], dtype=np.int64)),
    )
