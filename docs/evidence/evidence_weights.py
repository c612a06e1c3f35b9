"""Fit the weights of the coach `evidence` on labelled failures, and say what they are worth on questions left out.

    python docs/evidence/halves.py who_and_when.jsonl.gz development.jsonl reported.jsonl
    python docs/evidence/evidence_weights.py development.jsonl questions.txt

A conditional logit with a ridge, by the coach's own module: the decisive action against the others of its run. The
ridge is the one with the highest likelihood of runs whose question was left out; what fewer than LEAST runs hold is not
fitted but CHOSEN. Prints how often the decisive step and the guilty agent come first where the question was left out,
and then the table of `weights.py`. The second file gets the hashes of the questions: it is `fitted_on.txt` of the
package, by which a certificate knows them again.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mappa.look.coach_eval.labelled_runs import read_benchmark
from mappa_coach_evidence.evidence import ACCUSED, FIRST
from mappa_coach_evidence.fitting import Choice, fit_with_variance, log_odds
from mappa_coach_evidence.read_choices import read_choice
from mappa_coach_evidence.weights import CHOSEN, FIRST_PLACE

LEAST = 3
RIDGES = (0.1, 0.3, 1.0, 3.0)
"""Prior variances of a weight."""
NO_CHANCE = 0.01
"""The chance of a run whose decisive action cannot be blamed."""


def fit(choices: Sequence[Choice], ridge: float) -> dict[str, float]:
    """Weights of what at least LEAST runs hold, beside those that are chosen."""
    names = known_features(choices)
    every = {name for choice in choices for features in choice.features for name in features}
    chosen = {name: CHOSEN for name in every if name not in names and not name.endswith(FIRST)}
    return fit_with_variance(choices, {**chosen, ACCUSED: FIRST_PLACE}, ridge, free=names)


def known_features(choices: Sequence[Choice]) -> list[str]:
    """Features that at least LEAST runs hold, without what hard evidence weighs, which is chosen."""
    held = Counter(name for one in choices for name in {name for row in one.features for name, v in row.items() if v})
    return sorted(name for name, count in held.items() if count >= LEAST and name != ACCUSED)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """What became of a run when its question was left out."""

    stratum: str
    log_chance: float
    step: bool
    agent: bool


def leave_out(choices: Sequence[tuple[str, Choice]], ridge: float) -> list[LeftOut]:
    found = []
    for question in dict.fromkeys(one.question for _, one in choices):
        weights = fit([one for _, one in choices if one.question != question], ridge)
        for stratum, one in choices:
            if one.question != question:
                continue
            odds = np.array(log_odds(one.features, weights))
            chance = np.exp(odds - odds.max())
            chance /= chance.sum()
            best = int(chance.argmax())
            found.append(
                LeftOut(
                    stratum=stratum,
                    log_chance=float(np.log(chance[one.decisive].sum() if one.decisive.any() else NO_CHANCE)),
                    step=bool(one.decisive[best]),
                    agent=bool(one.by_guilty[best]),
                )
            )
    return found


def main() -> None:
    runs = read_benchmark("who-and-when", [Path(sys.argv[1])]).runs
    choices = [(run.stratum, read_choice(run, habits=False)) for run in runs]
    left_out = {ridge: leave_out(choices, ridge) for ridge in RIDGES}
    for ridge, found in left_out.items():
        for stratum in dict.fromkeys(one.stratum for one in found):
            own = [one for one in found if one.stratum == stratum]
            step, agent = (sum(getattr(one, name) for one in own) for name in ("step", "agent"))
            likelihood = np.mean([one.log_chance for one in own])
            print(f"ridge {ridge}: {stratum}: step {step}, agent {agent} of {len(own)}; log-chance {likelihood:.3f}")
    ridge = max(RIDGES, key=lambda one: sum(found.log_chance for found in left_out[one]))
    every = [choice for _, choice in choices]
    weights, names = fit(every, ridge), known_features(every)
    print(f"\nridge {ridge}")
    for name in names:
        print(f'    "{name}": {weights.get(name, 0.0):.2f},')
    Path(sys.argv[2]).write_text("".join(f"{question}\n" for question in sorted({one.question for one in every})))


if __name__ == "__main__":
    main()
