"""How long a run takes, by the seconds of a recorded one."""

from __future__ import annotations

from collections.abc import Sequence

from mappa.look.plan.changed_settings import affects_speed
from mappa.look.plan.history import RunHistory, SplitHistory
from mappa.look.plan.planned_work import PlannedWork
from mappa.look.plan.workload import PlannedAmount


def estimate_hours(
    history: RunHistory | None, changed: Sequence[str], work: PlannedWork
) -> tuple[PlannedAmount | None, str]:
    """Estimate the wall time of all iterations and evaluations, or the reason why it is unknown. Seconds scale with
    tokens, except for publishing weights, which takes as long as before. Evaluations and counterfactual rollouts sample
    at the speed at which an iteration collects."""
    if history is None:
        return None, ""
    if history.seconds is None or history.rollouts is None:
        return None, f"how long it takes is not known: {history.folder} finished no iteration"
    if other := list(filter(affects_speed, changed)):
        return None, f"how long it takes is not known: {history.folder} was with another {', '.join(other)}"
    then = history.splits["train"]
    sampled = history.rollouts * _sampled_tokens(then) / then.trajectories
    learned, replayed = work.learned.sampled_tokens, work.counterfactual.sampled_tokens
    held_out = work.evaluation.sampled_tokens
    if learned is None or replayed is None or held_out is None or not sampled:
        return None, "how long it takes is not known, as the tokens are not"
    published = PlannedAmount(history.seconds["publish"])
    apart = ("publish", "counterfactuals")
    by_tokens = sum(seconds for phase, seconds in history.seconds.items() if phase not in apart)
    collecting = history.seconds["collect"] / sampled
    training = (learned * (by_tokens / sampled) + replayed * collecting + published) * work.iterations
    evaluating = held_out * collecting * work.full_evaluations
    return (training + evaluating) * (1 / 3600), ""


def _sampled_tokens(history: SplitHistory) -> float:
    """Sampled tokens of policies with local weights."""
    return float(sum(totals.sampled or 0 for totals in history.agents.values()))
