"""Calibrations of ensembles, as `mappa coach calibrate` fits them: how likely each label of an action is."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from mappa_core import MAX_SCORE, ConfigError, Scene, Use, Verdict
from mappa_core.files import read_named_file

MAX_CALIBRATION_BYTES = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Calibration:
    """Log-odds `weights` (f, k) of `labels` (k,) by stratum, on `features`; `fitted_on` has hashes of questions.
    `agreement`: the share of pairs of runs of one question that the jury orders as the labels do, at the lower end of
    its 95 % interval; None without pairs that differ."""

    members: list[dict[str, object]]
    labels: list[int]
    anchor: list[float]
    weights: dict[str, list[list[float]]]
    fitted_on: list[str]
    agreement: float | None = None

    @classmethod
    def read(cls, path: str | Path, members: Sequence[Use] | None = None) -> "Calibration":
        """Read a file, of `members` if given, which may be called at other prices and limits, and by other keys than
        those that it was fitted on. Raises ConfigError."""
        try:
            content = read_named_file(Path(path).expanduser(), max_bytes=MAX_CALIBRATION_BYTES)
            found = msgspec.json.decode(content, type=cls)
            np.reshape(list(found.weights.values()), (-1, 5 + 3 * len(found.members), len(found.labels)))
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"calibration: {path} is no file that mappa coach calibrate wrote: {error}") from None
        if members is not None and _asked(found.members) != _asked([asdict(member) for member in members]):
            raise ConfigError(
                f"members: the calibration {path} was fitted for other members, or for these when they were asked "
                "otherwise: fit one for these with mappa coach calibrate"
            )
        return found

    @staticmethod
    def features(points: NDArray[np.float64], anchor: Sequence[float]) -> NDArray[np.float64]:
        """Features (n, 5 + 3 m): 1; the vote by the weights `anchor` (m,) on the action before, after, on all before,
        all after (mean); how near each of the points (n, m) is to 0, 5 and 10: adds up to 1, or to 0 if missing."""
        lean, place = points / (MAX_SCORE / 2) - 1, np.arange(len(points))
        near = np.nan_to_num(np.stack([np.maximum(-lean, 0), 1 - np.abs(lean), np.maximum(lean, 0)], axis=-1))
        # A zero at each end, as nobody acted before the first action and after the last. `place` counts the actions
        # before one, backwards those after it; where there are none, 0 is divided by 1.
        vote = np.pad(np.nan_to_num(lean) @ np.array(anchor), 1)
        means = vote[:-2].cumsum() / place.clip(1), vote[:1:-1].cumsum()[::-1] / place[::-1].clip(1)
        return np.column_stack([place**0, vote[:-2], vote[2:], *means, near.reshape(len(points), -1)])

    def judge(self, scenes: Sequence[Scene], said: Sequence[Sequence[Verdict]], sure: float = 0.0) -> list[Verdict]:
        """Judge all actions of a trajectory by what each member said; abstain where the likeliest label is less likely
        than `sure`. The score is the expected points (0, 5, 10), kept in that label's third of the scale."""
        stratum, third, verdicts = scenes[0].task.stratum, MAX_SCORE / 3, []
        if stratum not in self.weights:
            return [Verdict.abstained(f"fitted on {', '.join(self.weights)}, not on {stratum}")] * len(scenes)
        points = np.array([[verdict.score for verdict in row] for row in said], dtype=np.float64)
        odds = np.exp(self.features(points, self.anchor) @ np.array(self.weights[stratum]))
        for chances in odds / odds.sum(axis=1, keepdims=True):
            why = ", ".join(f"{label:+d} {chance:.0%}" for label, chance in zip(self.labels, chances, strict=True))
            # Strictly inside: a score on the border would lie in the third of two labels.
            low = third * (self.labels[int(chances.argmax())] + 1) + 1e-6
            score = min(max(MAX_SCORE / 2 * (1 + chances @ self.labels), low), low + third - 2e-6)
            verdicts.append(Verdict.scored(score, why) if chances.max() >= sure else Verdict.abstained(why))
        return verdicts


def _asked(settings: Any) -> Any:
    """What of coaches' settings affects their answers, as on a cassette: no price, no limits, no way of sending and no
    name of an environment variable."""
    if isinstance(settings, list):
        return [_asked(setting) for setting in settings]
    if not isinstance(settings, dict):
        return settings
    without = ("price", "limits", "batch_api")
    names = (name for name in settings if name not in without and not name.endswith("_env"))
    return {name: _asked(settings[name]) for name in names}
