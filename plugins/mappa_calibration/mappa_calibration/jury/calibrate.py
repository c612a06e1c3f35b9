"""Making a jury: fit it, write its file, and estimate what it is worth on questions that it has not seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec
import numpy as np

from mappa.judging import check_writable
from mappa.sessions import format_yaml, with_origin
from mappa_calibration import Calibration
from mappa_calibration.actions import Bool
from mappa_calibration.jury.anchors import Anchors
from mappa_calibration.jury.fitting import Fit, fit_jury
from mappa_calibration.jury.validation import (
    Validation,
    best_members,
    count_used,
    learning_curve,
    validate_jury,
)
from mappa_core import ConfigError, Use
from mappa_core.files import write_atomic


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationResult:
    """A jury as it was fitted: the weight of each member among those that may be the best, the ridge, how much it was
    fitted on, how many questions were left for a certificate, and its validation, also on fewer runs."""

    out: Path
    recipe: Path
    anchor: Mapping[str, float]
    ridge: float | None
    runs: int
    questions: int
    labels: int
    left: int
    strata: Mapping[str, int]
    validation: Validation
    curve: Sequence[Sequence[Validation]]


def check_places(out: Path) -> None:
    """Check that the two files of `calibrate` can be written, before members are asked.

    Raises:
        ConfigError: they would be one file.
        RunError: one cannot be written.
    """
    check_writable(out)
    recipe = _recipe_beside(out)
    if recipe == out:
        raise ConfigError(f"--out {out}: the recipe beside the calibration takes this name; give another, as in j.json")
    check_writable(recipe)


def calibrate(
    anchors: Anchors, members: Sequence[Use], out: Path, *, share: float, keep: int | None, draws: int
) -> CalibrationResult:
    """Fit a jury on a `share` of the questions and write it to `out`, and as the coach of a recipe to a YAML file
    beside it, which finds `out` from any folder. It is validated on all labels, `draws` times at each size of the
    curve; `keep` as in `validate_jury`.

    Raises:
        RunError: a file cannot be written.
    """
    validation = validate_jury(anchors, keep=keep)
    curve = learning_curve(anchors, draws=draws, keep=keep) if draws else []
    rows = anchors.question < count_used(len(anchors.questions), share)
    places = range(len(members)) if keep is None else best_members(anchors, rows, keep)
    anchors, members = anchors.select_members(places), [members[place] for place in places]
    fit = fit_jury(anchors, rows)
    known = validation.agreement
    calibration = _build_calibration(fit, anchors, rows, members, agreement=None if known is None else known.low)
    recipe = _recipe_beside(out)
    options = {"combine": "calibrated", "calibration": str(out.absolute()), "members": calibration.members}
    tree = with_origin({"coach": {"use": "ensemble", "options": options}}, "")
    write_atomic(out, msgspec.json.format(msgspec.json.encode(calibration), indent=1))
    write_atomic(recipe, format_yaml(tree))
    used = rows & anchors.labelled
    return CalibrationResult(
        out=out,
        recipe=recipe,
        anchor=dict(zip(anchors.members, fit.anchor.tolist(), strict=True)),
        ridge=fit.ridge,
        runs=len(np.unique(anchors.run[used])),
        questions=len(calibration.fitted_on),
        labels=int(used.sum()),
        left=len(anchors.questions) - len(calibration.fitted_on),
        strata={name: int((anchors.stratum[used] == place).sum()) for place, name in enumerate(anchors.strata)},
        validation=validation,
        curve=curve,
    )


def _recipe_beside(out: Path) -> Path:
    return out.with_suffix(".yaml")


def _build_calibration(
    fit: Fit, anchors: Anchors, rows: Bool, members: Sequence[Use], *, agreement: float | None
) -> Calibration:
    """The calibration of `members`: of the strata and questions with labels among the actions `rows` (n,)."""
    used = rows & anchors.labelled
    weights = {name: fit.weights[place].tolist() for place, name in enumerate(anchors.strata)}
    return Calibration(
        members=[asdict(member) for member in members],
        labels=fit.labels.tolist(),
        anchor=fit.anchor.tolist(),
        weights={anchors.strata[place]: weights[anchors.strata[place]] for place in np.unique(anchors.stratum[used])},
        fitted_on=[anchors.questions[place] for place in np.unique(anchors.question[used])],
        agreement=agreement,
    )
