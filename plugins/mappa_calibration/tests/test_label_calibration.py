"""Calibrated ensembles: probabilities by hand and by a slow reference, missing votes, and files that do not fit."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mappa_calibration.ensemble import build_ensemble
from mappa_calibration.ensemble_options import EnsembleOptions
from mappa_calibration.label_calibration import Calibration
from mappa_core import Coach, Completion, ConfigError, Message, Role, Scene, Step, Task, Use, Verdict

ZERO = [0.0, 0.0]


def scenes(count: int, stratum: str = "s") -> list[Scene]:
    completion = Completion(text="4", prompt_tokens=None, tokens=None, logprobs=None, finish="stop")
    task = Task(id="t", prompt="?", stratum=stratum)
    steps = [
        Step(id=f"t/{place}", agent="a", turn=place, position=place, policy="p", messages=(),
             reply=Message(role="assistant", content="4"), completion=completion)
        for place in range(count)
    ]  # fmt: skip
    return [Scene(task=task, role=Role(brief="adds"), step=step) for step in steps]


def verdict(points: float | None) -> Verdict:
    return Verdict.failed("no answer") if points is None else Verdict.scored(points, "because", blame="a")


def calibration(**changed: Any) -> Calibration:
    """Two members, of which the first is believed by log 9 : log 1 and the second not at all."""
    sure = math.log(9.0)
    weights = [ZERO, ZERO, ZERO, ZERO, ZERO, [sure, 0.0], ZERO, [0.0, sure], ZERO, ZERO, ZERO]
    known: dict[str, Any] = {
        "members": [{"use": "fixed", "options": {"points": value}} for value in (1.0, 9.0)],
        "labels": [-1, 1],
        "anchor": [1.0, 0.0],
        "weights": {"s": weights},
        "fitted_on": ["q"],
    }
    return Calibration(**{**known, **changed})


def judge(
    found: Calibration, *points: tuple[float | None, ...], sure: float = 0.0, stratum: str = "s"
) -> list[Verdict]:
    return found.judge(scenes(len(points), stratum), [[verdict(given) for given in row] for row in points], sure)


def test_probabilities_become_points_in_the_third_of_the_likeliest_label() -> None:
    right, wrong, unsure = judge(calibration(), (10, 0), (0, 10), (None, 10))
    assert right.score == pytest.approx(9.0)  # 0.9 right and 0.1 wrong
    assert wrong.score == pytest.approx(1.0)
    assert right.reasoning == "-1 10%, +1 90%"
    # A missing vote leaves the odds of 1 : 1, and the expected 5 points lie between the labels that there are.
    assert unsure.score == pytest.approx(10 / 3, abs=1e-5)
    # 7.5 points are half way from 5 to 10: the square root of 9 : 1.
    (half,) = judge(calibration(), (7.5, None))
    assert half.score == pytest.approx(7.5)


def test_it_abstains_below_a_probability_and_in_a_stratum_that_was_not_fitted() -> None:
    sure, unsure = judge(calibration(), (10, 0), (7.5, 0), sure=0.8)
    assert sure.score == pytest.approx(9.0)
    assert (unsure.status, unsure.reasoning) == ("abstained", "-1 25%, +1 75%")
    (elsewhere,) = judge(calibration(), (10, 0), stratum="other")
    assert (elsewhere.status, elsewhere.reasoning) == ("abstained", "fitted on s, not on other")


points = st.one_of(st.none(), st.floats(0, 10))


@given(st.integers(1, 3).flatmap(lambda m: st.lists(st.lists(points, min_size=m, max_size=m), min_size=1, max_size=6)))
def test_features_are_those_of_a_slow_reference(rows: list[list[float | None]]) -> None:
    anchor = [0.7, 0.2, 0.1][: len(rows[0])]
    given_points = np.array([[math.nan if given is None else given for given in row] for row in rows])
    np.testing.assert_allclose(Calibration.features(given_points, anchor), slow_features(rows, anchor), atol=1e-12)


def slow_features(rows: Sequence[Sequence[float | None]], anchor: Sequence[float]) -> list[list[float]]:
    votes = [
        sum(weight * (given - 5) / 5 for weight, given in zip(anchor, row, strict=True) if given is not None)
        for row in rows
    ]
    found = []
    for place, row in enumerate(rows):
        before, after = votes[:place], votes[place + 1 :]
        own = [1.0, before[-1] if before else 0.0, after[0] if after else 0.0]
        own += [sum(others) / len(others) if others else 0.0 for others in (before, after)]
        for vote in row:
            near = [0.0, 0.0, 0.0] if vote is None else [max(0.0, 1 - abs(vote - knot) / 5) for knot in (0, 5, 10)]
            own += near
        found.append(own)
    return found


@given(st.lists(st.tuples(points, points), min_size=1, max_size=5), st.integers(0, 2**32 - 1))
def test_verdicts_are_those_of_a_slow_reference(rows: list[tuple[float | None, ...]], seed: int) -> None:
    weights = np.random.default_rng(seed).normal(size=(11, 3)).tolist()
    known = calibration(labels=[-1, 0, 1], weights={"s": weights})
    for own, said in zip(slow_features(rows, known.anchor), judge(known, *rows), strict=True):
        odds = [math.exp(sum(x * row[label] for x, row in zip(own, weights, strict=True))) for label in range(3)]
        chances = [chance / sum(odds) for chance in odds]
        label = max(range(3), key=lambda place: chances[place])
        expected = 5 * chances[1] + 10 * chances[2]
        assert said.score is not None
        assert said.score == pytest.approx(min(max(expected, label * 10 / 3), (label + 1) * 10 / 3), abs=1e-5)
        assert (said.score > 20 / 3, said.score < 10 / 3) == (label == 2, label == 0)


@dataclass
class Points:
    points: float = 5.0


class Fixed(Coach):
    def __init__(self, points: float | None) -> None:
        self.points = points

    async def score(self, scene: Scene) -> Verdict:
        return verdict(self.points)


def options(path: Path, *members: float, **changed: Any) -> EnsembleOptions:
    uses = [Use(use="fixed", options=Points(points)) for points in members or (1.0, 9.0)]
    return EnsembleOptions(members=uses, combine="calibrated", calibration=str(path), **changed)


def save(path: Path, found: Calibration) -> Path:
    names = ("members", "labels", "anchor", "weights", "fitted_on")
    path.write_text(json.dumps({name: getattr(found, name) for name in names}))
    return path


async def test_an_ensemble_applies_it_to_the_trajectory_and_members_may_fail(tmp_path: Path) -> None:
    file = save(tmp_path / "jury.json", calibration())
    jury = build_ensemble(options(file), lambda use: Fixed(use.options.points))
    assert jury.by_trajectory
    reviewed = await jury.review(scenes(2))
    assert [verdict.score for verdict in reviewed] == pytest.approx([10 / (1 + 9**0.8)] * 2)
    assert reviewed[0].reasoning.startswith("-1 85%, +1 15% of fixed 1, fixed-2 9")
    assert [member.score for member in reviewed[0].members] == [1.0, 9.0]
    assert (await jury.score(scenes(1)[0])).score == reviewed[0].score
    failing = build_ensemble(options(file), lambda use: Fixed(None if use.options.points < 5 else 9.0))
    (half,) = await failing.review(scenes(1))
    assert half.score == pytest.approx(10 / 3, abs=1e-5)
    (silent,) = await build_ensemble(options(file), lambda use: Fixed(None)).review(scenes(1))
    assert silent.status == "failed"


async def test_an_abstaining_verdict_blames_nobody(tmp_path: Path) -> None:
    file = save(tmp_path / "jury.json", calibration())
    (said,) = await build_ensemble(options(file, abstain_below=0.9), lambda use: Fixed(use.options.points)).review(
        scenes(1)
    )
    assert (said.status, said.score, said.blame) == ("abstained", None, None)


@pytest.mark.parametrize(("agreement", "is_watched"), [(None, False), (0.4, False), (0.5, False), (0.8, True)])
def test_outcomes_are_watched_where_the_jury_agrees_with_labels_more_than_by_chance(
    tmp_path: Path, agreement: float | None, is_watched: bool
) -> None:
    file = save(tmp_path / "jury.json", calibration())
    file.write_text(json.dumps({**json.loads(file.read_text()), "agreement": agreement}))
    jury = build_ensemble(options(file), lambda use: Fixed(use.options.points))
    assert ("agreement" in jury.state_dict()) == is_watched


def test_other_members_are_refused(tmp_path: Path) -> None:
    file = save(tmp_path / "jury.json", calibration())
    for members in ((1.0, 8.0), (9.0, 1.0), (1.0, 9.0, 5.0)):
        with pytest.raises(
            ConfigError, match="was fitted for other members, or for these when they were asked otherwise"
        ):
            build_ensemble(options(file, *members), lambda use: Fixed(5.0))


def test_members_may_cost_other_prices_and_be_called_otherwise(tmp_path: Path) -> None:
    @dataclass
    class Called:
        price: dict[str, float] | None = None
        limits: dict[str, int] | None = None
        batch_api: dict[str, int] | None = None
        api_key_env: str | None = "KEY"
        model: str = "m"

    def members(**changed: Any) -> list[Use]:
        wrapped = {"coach": {"use": "fixed", "options": asdict(Called(**changed))}}
        return [Use(use="fixed", options=Called(**changed)), Use(use="corrected", options=wrapped)]

    fitted = [asdict(member) for member in members()]
    file = save(tmp_path / "jury.json", calibration(members=fitted))
    Calibration.read(file, members(price={"input": 1.0}, limits={"concurrency": 8}, batch_api={}, api_key_env="OTHER"))
    with pytest.raises(ConfigError, match="was fitted for other members, or for these when they were asked otherwise"):
        Calibration.read(file, members(model="n"))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"members": 3}'])
def test_a_file_that_is_no_calibration_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "jury.json"
    for _ in range(2):
        with pytest.raises(ConfigError, match=f"calibration: {file} is no file that mappa coach calibrate wrote"):
            Calibration.read(file)
        file.write_text(text)
    with pytest.raises(ConfigError, match="is no file that mappa coach calibrate wrote"):
        Calibration.read(save(file, replace(calibration(), weights={"s": [ZERO] * 10})))


def test_options_go_together() -> None:
    uses = [Use(use="fixed", options=Points(points)) for points in (1.0, 9.0)]
    with pytest.raises(ConfigError, match="calibration: combine=calibrated needs it"):
        EnsembleOptions(members=uses, combine="calibrated").check()
    with pytest.raises(ConfigError, match="calibration: combine=calibrated needs it"):
        EnsembleOptions(members=uses, calibration="x").check()
    with pytest.raises(ConfigError, match="abstain_below: must be a share from 0 to 1"):
        EnsembleOptions(members=uses, combine="calibrated", calibration="x", abstain_below=1.5).check()
