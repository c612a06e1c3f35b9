"""Feedback for one agent: what the verdicts say of its own actions, and of nobody else's."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from mappa_core import MAX_SCORE, NOBODY, Step, Trajectory, Verdict
from mappa_core.sandbox import cut_middle

INPUT_CHARACTERS, ACTION_CHARACTERS, RESULT_CHARACTERS = 3000, 3000, 1500
HANDED_ON = ("missing_input", "broken_input")
"""Breaches of a hand-off by an agent before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionFeedback:
    """One action as a proposal is shown it. `verdict` is a sentence with its points or with the team's result."""

    input: str
    action: str
    results: str
    verdict: str


def counting_verdicts(trajectory: Trajectory) -> dict[str, Verdict]:
    """The last scored verdict on each step, by its id; steps without one are left out."""
    return {verdict.step: verdict for verdict in trajectory.verdicts if verdict.status == "scored"}


def blame_points(trajectories: Sequence[Trajectory], agents: Collection[str]) -> dict[str, float]:
    """Points (0-10 an action) that each agent's verdicts take off: from the agent that a verdict blames, or else from
    the one that acted; nobody loses any where a verdict blames nobody."""
    points = dict.fromkeys(agents, 0.0)
    for trajectory in trajectories:
        verdicts = counting_verdicts(trajectory)
        for step in trajectory.steps:
            verdict = verdicts.get(step.id)
            if verdict is None or verdict.score is None or verdict.blame == NOBODY:
                continue
            guilty = step.agent if verdict.blame is None else verdict.blame
            if guilty in points:
                points[guilty] += MAX_SCORE - verdict.score
    return points


def own_feedback(trajectories: Sequence[Trajectory], agent: str, *, hide_reasons: bool) -> list[ActionFeedback]:
    """Feedback on the agent's actions, lowest score first. An action that was handed something broken, and one whose
    verdict blames another agent, teach it nothing and are left out. `hide_reasons`: its coach was shown the truth."""
    own = [pair for trajectory in trajectories for pair in _own_verdicts(trajectory, agent)]
    own.sort(key=lambda pair: _score(pair[1]))
    return [_feedback(step, _sentence(verdict, hide_reasons=hide_reasons)) for step, verdict in own]


def outcome_feedback(trajectories: Sequence[Trajectory], agent: str, metric: str) -> list[ActionFeedback]:
    """Feedback on the agent's actions from the team's result alone."""
    return [
        _feedback(step, _outcome_sentence(trajectory, metric))
        for trajectory in trajectories
        for step in trajectory.steps
        if step.agent == agent
    ]


def _own_verdicts(trajectory: Trajectory, agent: str) -> Iterator[tuple[Step, Verdict]]:
    verdicts = counting_verdicts(trajectory)
    for step in trajectory.steps:
        verdict = verdicts.get(step.id)
        if step.agent != agent or verdict is None or any(breach.kind in HANDED_ON for breach in step.breaches):
            continue
        if verdict.blame in (None, NOBODY, agent):
            yield step, verdict


def _score(verdict: Verdict) -> float:
    assert verdict.score is not None  # a scored verdict has one
    return verdict.score


def _sentence(verdict: Verdict, *, hide_reasons: bool) -> str:
    points = f"{_score(verdict):g} of {MAX_SCORE:g} points."
    return points if hide_reasons else f"{points} {verdict.reasoning}"


def _outcome_sentence(trajectory: Trajectory, metric: str) -> str:
    if trajectory.error is not None:
        return f"The team did not finish this task: {trajectory.error.kind}."
    return f"The team's result on this task: {metric} {trajectory.outcome[metric]:g}."


def _feedback(step: Step, verdict: str) -> ActionFeedback:
    results = "\n".join(f"{result.status}\n{result.stdout}\n{result.stderr}".strip() for result in step.results)
    return ActionFeedback(
        input=cut_middle(step.messages[-1].content, INPUT_CHARACTERS) if step.messages else "",
        action=cut_middle(step.reply.content, ACTION_CHARACTERS),
        results=cut_middle(results, RESULT_CHARACTERS),
        verdict=verdict,
    )
