"""What ten labels of one's own are worth: weights of the coach `evidence` fitted to ten plays, on all others of a set.

    python docs/evidence/halves.py who_and_when.jsonl.gz development.jsonl reported.jsonl
    mappa import development.jsonl --name who-and-when
    mappa import processbench_gsm8k.jsonl.gz --messages steps --prompt problem --task-id id --guilty-step label \
        --unnamed solver --name gsm8k
    mappa import bigbench_mistake.jsonl.gz --messages steps --prompt input --stratum task --guilty-step mistake_index \
        --unnamed solver --name bigbench
    mappa import stepshield.jsonl.gz --name stepshield
    python docs/evidence/ten_labels.py runs/who-and-when=Algorithm-Generated runs/who-and-when=Hand-Crafted \
        runs/gsm8k runs/bigbench runs/stepshield

Each word is a labelled run, or one stratum of it. Ten labelled plays are drawn, 50 times; weights are fitted to them as
`mappa coach fit evidence` does, and held against all plays of other questions. Draws and questions are both samples, so
the interval of the gain over the shipped weights has the variance of the mean over draws and that over questions.
"""

from __future__ import annotations

import asyncio
import json
import math
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from mappa.look.coach_eval.labelled_runs import read_labelled_runs
from mappa.statistics import mean_interval
from mappa.testing import load_plugins
from mappa_coach_evidence.fitting import Choice, fit_weights
from mappa_coach_evidence.read_choices import read_choice
from mappa_coach_evidence.validation import is_right
from mappa_coach_evidence.weights import WEIGHTS

LABELS = 10
DRAWS = 50
Z = 1.96


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """Shares of steps, 0-1, of plays that were not drawn; `low` and `high` bound the gain of the fit over the shipped
    weights at 95 %. `variances` counts the draws by the variance that was chosen, 0 where nothing moved."""

    set: str
    plays: int
    shipped: float
    fitted: float
    common: float
    gain: float
    low: float
    high: float
    draws_worse: int
    variances: dict[str, int]


def read_choices(word: str) -> list[Choice]:
    folder, _, stratum = word.partition("=")
    registry = load_plugins(only=("look", "evidence"))
    runs = asyncio.run(read_labelled_runs(registry, [Path(folder)])).runs
    chosen = [run for run in runs if run.guilt is not None and run.guilt.positions]
    return [read_choice(run) for run in chosen if stratum in ("", run.stratum)]


def measure(name: str, choices: Sequence[Choice]) -> Gain:
    random = np.random.default_rng(0)
    learnable = [number for number, choice in enumerate(choices) if choice.is_informative]
    shipped = np.array([is_right(choice, WEIGHTS) for choice in choices])
    gains, fitted, before, common = np.full((4, DRAWS, len(choices)), np.nan)
    variances: Counter[float] = Counter()
    for draw in range(DRAWS):
        drawn = [choices[number] for number in random.choice(learnable, LABELS, replace=False)]
        seen = {choice.question for choice in drawn}
        fit = fit_weights(drawn, WEIGHTS)
        variances[fit.variance] += 1
        place, _ = Counter(int(np.flatnonzero(choice.decisive)[0]) for choice in drawn).most_common(1)[0]
        for number, choice in enumerate(choices):
            if choice.question in seen:
                continue
            right = is_right(choice, fit.weights)
            fitted[draw, number], before[draw, number] = right, shipped[number]
            gains[draw, number] = right - shipped[number]
            common[draw, number] = float(place < len(choice.decisive) and choice.decisive[place])
    by_draw, by_play = np.nanmean(gains, axis=1), np.nanmean(gains, axis=0)
    known = np.isfinite(by_play)
    clusters = [choice.question for choice, is_known in zip(choices, known, strict=True) if is_known]
    over_questions = mean_interval(by_play[known], clusters)
    assert over_questions.high is not None  # a set has many questions
    error = math.hypot((over_questions.high - over_questions.mean) / Z, by_draw.std(ddof=1) / math.sqrt(DRAWS))
    gain = float(by_draw.mean())
    return Gain(
        set=name,
        plays=len(choices),
        shipped=float(np.nanmean(before)),
        fitted=float(np.nanmean(fitted)),
        common=float(np.nanmean(common)),
        gain=gain,
        low=gain - Z * error,
        high=gain + Z * error,
        draws_worse=int((by_draw < 0).sum()),
        variances={str(variance): count for variance, count in sorted(variances.items())},
    )


def main() -> None:
    for word in sys.argv[1:]:
        print(json.dumps(asdict(measure(word, read_choices(word)))), flush=True)


if __name__ == "__main__":
    main()
