"""Fit the weights of the coach `evidence` on labelled failures, and say what they are worth on questions left out.

    python docs/evidence/halves.py who_and_when.jsonl.gz development.jsonl reported.jsonl
    python docs/evidence/evidence_weights.py development.jsonl

A conditional logit with a ridge: the decisive action against the others of its run. The ridge is the one with the
highest likelihood of runs whose question was left out; what fewer than LEAST runs hold is not fitted but CHOSEN.
Prints how often the decisive step and the guilty agent are found where the question was left out, and then the table of
`weights.py`.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mappa.look.coach_eval.labelled_runs import LabelledRun, read_benchmark
from mappa_coach_evidence.evidence import FIRST, collect_evidence
from mappa_coach_evidence.rules import RULES
from mappa_coach_evidence.transcript import read_transcript
from mappa_coach_evidence.weights import CHOSEN

LEAST = 3
RIDGES = (0.1, 0.3, 1.0, 3.0)
"""Prior variances of a weight."""
NEWTON_STEPS = 25


@dataclass(frozen=True, kw_only=True, eq=False)
class Choice:
    """A run as a choice among m actions: their `features`, which are decisive (m,), and which are by a guilty agent."""

    stratum: str
    question: str
    features: Sequence[dict[str, float]]
    decisive: np.ndarray
    by_guilty: np.ndarray


def read_choice(run: LabelledRun) -> Choice:
    assert run.guilt is not None
    evidence = collect_evidence(read_transcript(run.scenes), RULES)
    return Choice(
        stratum=run.stratum,
        question=run.cluster,
        features=[dict(one.features) for one in evidence.values()],
        decisive=np.array([place in run.guilt.positions for place in evidence]),
        by_guilty=np.array([run.steps[place].agent in run.guilt.agents for place in evidence]),
    )


def fit(choices: Sequence[Choice], names: Sequence[str], ridge: float) -> np.ndarray:
    """Weights (f,) of the features `names`, by Newton's method. A run whose decisive action cannot be blamed says
    nothing."""
    told = [(matrix(one, names), chosen_odds(one, names), one.decisive) for one in choices if one.decisive.any()]
    weights = np.zeros(len(names))
    for _ in range(NEWTON_STEPS):
        gradient, curvature = -weights / ridge, np.eye(len(names)) / ridge
        for rows, fixed, decisive in told:
            chance = softmax(rows @ weights + fixed)
            among = np.where(decisive, chance, 0.0) / chance[decisive].sum()
            mean = chance @ rows
            gradient += among @ rows - mean
            curvature += (rows * chance[:, None]).T @ rows - np.outer(mean, mean)
        step = np.linalg.solve(curvature, gradient)
        weights += step / max(1.0, np.abs(step).max())
        if np.abs(step).max() < 1e-6:
            break
    return weights


def matrix(choice: Choice, names: Sequence[str]) -> np.ndarray:
    return np.array([[one.get(name, 0.0) for name in names] for one in choice.features])


def chosen_odds(choice: Choice, names: Sequence[str]) -> np.ndarray:
    """Log-odds (m,) of what cannot be weighed: chosen, not fitted."""
    return np.array(
        [sum(CHOSEN for name in one if name not in names and not name.endswith(FIRST)) for one in choice.features]
    )


def softmax(odds: np.ndarray) -> np.ndarray:
    chance: np.ndarray = np.exp(odds - odds.max())
    return chance / chance.sum()


def known_features(choices: Sequence[Choice]) -> list[str]:
    """Features that at least LEAST runs hold."""
    held = Counter(name for one in choices for name in {name for row in one.features for name, v in row.items() if v})
    return sorted(name for name, count in held.items() if count >= LEAST)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """What became of a run when its question was left out."""

    stratum: str
    log_chance: float
    step: bool
    agent: bool


def leave_out(choices: Sequence[Choice], ridge: float) -> list[LeftOut]:
    found = []
    for question in dict.fromkeys(one.question for one in choices):
        others = [one for one in choices if one.question != question]
        names = known_features(others)
        weights = fit(others, names, ridge)
        for one in (one for one in choices if one.question == question):
            chance = softmax(matrix(one, names) @ weights + chosen_odds(one, names))
            best = int(chance.argmax())
            likely = float(chance[one.decisive].sum()) if one.decisive.any() else 0.01
            found.append(
                LeftOut(
                    stratum=one.stratum,
                    log_chance=float(np.log(likely)),
                    step=bool(one.decisive[best]),
                    agent=bool(one.by_guilty[best]),
                )
            )
    return found


def main() -> None:
    runs = read_benchmark("who-and-when", [Path(sys.argv[1])]).runs
    choices = [read_choice(run) for run in runs]
    left_out = {ridge: leave_out(choices, ridge) for ridge in RIDGES}
    for ridge, found in left_out.items():
        for stratum in dict.fromkeys(one.stratum for one in found):
            own = [one for one in found if one.stratum == stratum]
            step, agent = (sum(getattr(one, name) for one in own) for name in ("step", "agent"))
            likelihood = np.mean([one.log_chance for one in own])
            print(f"ridge {ridge}: {stratum}: step {step}, agent {agent} of {len(own)}; log-chance {likelihood:.3f}")
    ridge = max(RIDGES, key=lambda one: sum(found.log_chance for found in left_out[one]))
    names = known_features(choices)
    print(f"\nridge {ridge}")
    for name, weight in zip(names, fit(choices, names, ridge), strict=True):
        print(f'    "{name}": {weight:.2f},')


if __name__ == "__main__":
    main()
