"""What weights that were fitted to labels are worth on plays whose question they have not seen, beside the shipped
weights and the place that is most often labelled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mappa.statistics import Interval, paired_gain, share_interval
from mappa_coach_evidence.fitting import Choice, Float64, deal_folds, fit_weights, log_odds


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """Shares (0-1) of `plays` labelled plays in which the first place of the ranking is right, with 95 % intervals over
    questions: by weights that were fitted to the other folds, the shipped weights, and the most common place of the
    labels of the other folds. `over_shipped` and `over_common` are paired differences of the first and the others."""

    plays: int
    fitted: Interval
    shipped: Interval
    common: Interval
    over_shipped: Interval
    over_common: Interval

    @property
    def is_better(self) -> bool:
        """Whether the fitted weights are certainly better than both."""
        return all(gain.low is not None and gain.low > 0 for gain in (self.over_shipped, self.over_common))

    @property
    def is_worse(self) -> bool:
        """Whether the fitted weights are certainly worse than one of them."""
        return any(gain.high is not None and gain.high < 0 for gain in (self.over_shipped, self.over_common))


def validate(choices: Sequence[Choice], shipped: Mapping[str, float]) -> Validation:
    """Fit on all folds but one, in turn, with everything that a fit chooses, and hold it against the labels of that
    one. A play that is labelled by agent alone is right where an action of that agent comes first."""
    folds = deal_folds([choice.question for choice in choices])
    right = np.zeros((3, len(choices)))
    for fold in np.unique(folds):
        others = [choice for choice, own in zip(choices, folds, strict=True) if own != fold]
        fitted, place = fit_weights(others, shipped).weights, _most_common_place(others)
        for number in np.flatnonzero(folds == fold):
            choice = choices[number]
            by_place = float(place in choice.places and choice.decisive[choice.places.index(place)])
            right[:, number] = (is_right(choice, fitted), is_right(choice, shipped), by_place)
    clusters = [choice.question for choice in choices]
    of = None if len(set(clusters)) == len(clusters) else clusters
    return Validation(
        plays=len(choices),
        fitted=share_interval(right[0], of),
        shipped=share_interval(right[1], of),
        common=share_interval(right[2], of),
        over_shipped=_gain(right[1], right[0], of),
        over_common=_gain(right[2], right[0], of),
    )


def is_right(choice: Choice, weights: Mapping[str, float]) -> float:
    """1.0 if the action that these weights put first is decisive, else 0.0."""
    if not choice.features:
        return 0.0
    return float(choice.decisive[int(np.argmax(log_odds(choice.features, weights)))])


def _gain(before: Float64, after: Float64, clusters: Sequence[str] | None) -> Interval:
    return paired_gain(before, after, clusters)


def _most_common_place(choices: Sequence[Choice]) -> int | None:
    """The place that is labelled most often, of equals the first; None where no label has a step."""
    places = [
        choice.places[number] for choice in choices if choice.has_step for number in np.flatnonzero(choice.decisive)
    ]
    counts = Counter(places)
    return min(counts, key=lambda place: (-counts[place], place), default=None)
