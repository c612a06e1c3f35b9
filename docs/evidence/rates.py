"""Each arm at its best learning rate: chosen on one part of the held-out tasks, reported on the other.

Some seeds try every rate. The rate whose mean accuracy on the tasks that choose is highest is taken for all seeds.
Tasks part by hash, as `eval.selection` parts them, and no figure that is reported had a say in the choice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from study import Study, Words

CHOOSING = 1
"""Seeds that try every rate, the first ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The rate that an arm runs at, what each rate came to on the tasks that choose (a share), and the runs of all
    seeds at the rate that was chosen."""

    arm: str
    rate: float
    tried: Mapping[float, float]
    runs: tuple[Path, ...]

    @property
    def told(self) -> dict[str, object]:
        """The choice as JSON values."""
        tried = {f"{rate:g}": figure for rate, figure in self.tried.items()}
        return {"arm": self.arm, "rate": self.rate, "tried": tried, "runs": [run.name for run in self.runs]}

    @property
    def cells(self) -> tuple[str, str, str]:
        """A line of a table: the arm, the rate that was chosen, and what every rate came to in per cent."""
        tried = ", ".join(f"{rate:g}: {100 * figure:.1f}" for rate, figure in self.tried.items())
        return self.arm, f"{self.rate:g}", tried


def at_best_rates(
    study: Study,
    arms: Mapping[str, Words],
    rates: Mapping[str, Sequence[float]],
    chosen_by: Callable[[Sequence[Path]], float],
    *,
    choosing: Sequence[int] | None = None,
) -> tuple[Choice, ...]:
    """Train every arm at all of its `rates`, then at the best of them with every seed.

    Args:
        chosen_by: the figure of an arm at a rate by which the rate is chosen, from its runs: the highest is taken.
        choosing: the seeds that try every rate; None: the first ones of the study.

    Raises:
        Failed: a run did not come to its end.
    """
    tried = {(arm, rate): (*arms[arm], _word(rate)) for arm in arms for rate in rates[arm]}
    first = study.train({_name(*key): words for key, words in tried.items()}, choosing or study.asked.seeds[:CHOOSING])
    figures = {key: chosen_by(first[_name(*key)]) for key in tried}
    best = {arm: max(rates[arm], key=lambda rate: figures[arm, rate]) for arm in arms}
    last = study.train({_name(arm, rate): tried[arm, rate] for arm, rate in best.items()}, study.asked.seeds)
    return tuple(
        Choice(
            arm=arm,
            rate=rate,
            tried={one: figures[arm, one] for one in rates[arm]},
            runs=last[_name(arm, rate)],
        )
        for arm, rate in best.items()
    )


def _word(rate: float) -> str:
    return f"train.learning_rate={rate}"


def _name(arm: str, rate: float) -> str:
    return f"{arm} at {rate:g}"
