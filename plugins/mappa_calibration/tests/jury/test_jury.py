"""Juries: what is learned from labels, that few labels do no harm, and that nobody is certified on what it saw."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import mappa.look.cli.coach as coach
from mappa_calibration.jury import coach_calibrate
from mappa_calibration.jury.anchors import Anchors, label_points
from mappa_calibration.jury.fitting import fit_jury, weigh_members
from mappa_calibration.jury.validation import (
    agree_with_labels,
    best_members,
    learning_curve,
    runs_needed,
    validate_jury,
)
from mappa_calibration.label_calibration import Calibration
from mappa_core import ConfigError


def simulate(accuracies, *, questions=40, steps=4, seed=0, copies=(), missing=0.0):
    """Members that are right with these chances, independently; `copies` repeat a member of that place."""
    random = np.random.default_rng(seed)
    count = questions * steps
    labels = random.choice([-1.0, 1.0], count)
    right = random.random((count, len(accuracies))) < accuracies
    said = np.where(right, labels[:, None], -labels[:, None])
    said = np.concatenate([said, said[:, list(copies)]], axis=1)
    points = np.where(random.random(said.shape) < missing, np.nan, 5 * (said + 1))
    question = np.repeat(np.arange(questions), steps)
    return Anchors(
        members=tuple(f"m{place}" for place in range(points.shape[1])),
        points=points,
        labels=labels,
        run=question,
        question=question,
        stratum=question % 2,
        strata=("a", "b"),
        questions=tuple(f"{number:04}" for number in range(questions)),
    )


def everything(anchors):
    return np.ones(len(anchors.labels), dtype=np.bool_)


def predict(fit, anchors):
    return fit.labels[fit.probabilities(anchors, everything(anchors)).argmax(axis=1)]


def test_points_are_read_by_thirds():
    np.testing.assert_array_equal(
        label_points(np.array([0, 3.3, 3.4, 6.6, 6.7, 10, np.nan])), [-1, -1, 0, 0, 1, 1, np.nan]
    )


def test_agreement_with_labels_by_hand():
    """The first question has a faultless run (mean 0.5) and two with an error (means 0 and 0.5): one pair in order, one
    a tie. The runs of the second are all faultless."""
    anchors = Anchors(
        members=("m",),
        points=np.zeros((6, 1)),
        labels=np.array([1, 1, -1, -1, 1, 1.0]),
        run=np.array([0, 0, 1, 2, 3, 4]),
        question=np.array([0, 0, 0, 0, 1, 1]),
        stratum=np.zeros(6, dtype=int),
        strata=("a",),
        questions=("p", "q"),
    )
    assert agree_with_labels(anchors, np.array([0.0, 1.0, 0.0, 0.5, 1.0, 0.0])).value == 0.75
    assert agree_with_labels(anchors.select_members([0]), np.zeros(6)).value == 0.5


def test_agreement_with_all_labels_of_few_questions_is_no_certainty():
    anchors = Anchors(
        members=("m",),
        points=np.zeros((16, 1)),
        labels=np.tile([1.0, -1.0], 8),
        run=np.arange(16),
        question=np.repeat(np.arange(8), 2),
        stratum=np.zeros(16, dtype=int),
        strata=("a",),
        questions=tuple(map(str, range(8))),
    )
    found = agree_with_labels(anchors, np.tile([1.0, 0.0], 8))
    assert (found.value, found.low, found.high) == pytest.approx((1.0, 8 / (8 + 1.959964**2), 1.0))


def test_the_anchor_by_hand():
    """Two questions of two actions. The first member is right on all four, the second on three, the third on none."""
    anchors = simulate([1.0, 1.0, 0.0], questions=2, steps=2)
    anchors.points[0, 1] = 10 - anchors.points[0, 1]
    weight = weigh_members(anchors, everything(anchors))
    # The deficit is 1/4; by question it is off by +1/2 and -1/2: the error is sqrt(1/2) / 4, and z is sqrt(2).
    second = np.exp(-1.0)
    np.testing.assert_allclose(weight, [1 / (1 + second), second / (1 + second), 0.0])


def test_a_jury_of_independent_members_beats_the_best_of_them_and_a_copy_adds_nothing():
    anchors = simulate([0.8, 0.75, 0.75, 0.75, 0.7], questions=100)
    found = validate_jury(anchors)
    assert found.agreement is None  # No question has two runs.
    assert found.steps.best == "m0"
    assert found.steps.better and found.steps.gain.value > 0.03
    # Three copies of a weak member outvote two better ones in a plain majority, and not in a jury.
    copied = simulate([0.9, 0.8, 0.6], questions=100, copies=(2, 2))
    majority = np.sign(copied.votes.sum(axis=1))
    assert (majority == copied.labels).mean() < 0.8
    assert validate_jury(copied).steps.jury.value > 0.88


@settings(max_examples=5, deadline=None, derandomize=True)
@given(
    best=st.floats(0.75, 0.95),
    others=st.lists(st.floats(0.3, 0.6), min_size=1, max_size=5),
    seed=st.integers(0, 1000),
)
def test_with_few_labels_it_is_not_worse_than_its_best_member(best, others, seed):
    anchors = simulate([best, *others], questions=80, seed=seed)
    few = anchors.question < 20
    right = predict(fit_jury(anchors, few), anchors)[~few] == anchors.labels[~few]
    alone = anchors.votes[~few, 0] == anchors.labels[~few]
    assert right.mean() >= alone.mean() - 0.1


def test_without_any_disagreement_between_labels_and_member_it_repeats_that_member():
    anchors = simulate([1.0, 0.5], questions=6, steps=2, seed=3)
    new = simulate([1.0, 0.5], questions=100, seed=4)
    np.testing.assert_array_equal(predict(fit_jury(anchors, everything(anchors)), new), new.votes[:, 0])


def test_labels_that_were_left_out_change_nothing():
    anchors = simulate([0.8, 0.7, 0.7], questions=30)
    kept = anchors.question < 20
    fit = fit_jury(anchors, kept)
    anchors.labels[~kept] *= -1
    np.testing.assert_array_equal(fit_jury(anchors, kept).weights, fit.weights)


def test_missing_votes_are_no_votes():
    anchors = simulate([0.85, 0.8, 0.8], questions=100, missing=0.3)
    fit = fit_jury(anchors, everything(anchors))
    nobody = simulate([0.5, 0.5, 0.5], questions=2)
    nobody.points[:] = np.nan
    chance = fit.probabilities(nobody, everything(nobody))
    # Who hears nothing is left with about the share of the labels.
    assert abs(chance[0, 1] - (anchors.labels > 0).mean()) < 0.1
    assert validate_jury(anchors).steps.better


def test_members_are_chosen_by_the_labels_given():
    anchors = simulate([0.6, 0.9, 0.7, 0.8], questions=100)
    assert best_members(anchors, everything(anchors), 2) == [1, 3]
    assert anchors.select_members([1, 3]).members == ("m1", "m3")


def test_the_curve_ends_where_the_runs_of_some_folds_do():
    """Of 28 runs the first question has ten; without them there are 18, so that no 20 can be sampled."""
    anchors = simulate([0.8, 0.7], questions=28)
    question = np.where(anchors.question < 10, 0, anchors.question // 3)
    uneven = replace(
        anchors, question=np.unique(question, return_inverse=True)[1], questions=tuple(map(str, np.unique(question)))
    )
    assert learning_curve(uneven, draws=1) == []
    (row,) = learning_curve(anchors, draws=1)
    assert row[0].runs == 20


def test_no_curve_tells_how_many_runs_are_needed():
    assert runs_needed([]) is None


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path):
    """Forty labelled runs and what three judges said of them, in the format of AgentProcessBench."""
    anchors = simulate([0.95, 0.8, 0.8], questions=40, steps=3, seed=1)
    labels, verdicts = [], []
    for run in range(40):
        rows = np.flatnonzero(anchors.run == run)
        head = {"dataset": "bfcl" if run % 2 else "tau2", "query": run, "sample": 0}
        numbers = [str(2 + 2 * place) for place in range(3)]
        labels.append(
            {**head, "steps": dict(zip(numbers, anchors.labels[rows].astype(int).tolist(), strict=True)), "final": 1}
        )
        for judge in range(3):
            said = anchors.votes[rows, judge].astype(int).tolist()
            verdicts.append({"judge": f"j{judge}", **head, "steps": dict(zip(numbers, said, strict=True)), "final": 1})
    for name, lines in (("labels", labels), ("verdicts", verdicts)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path


def run_command(*words):
    command = coach_calibrate.command if words[0] == "calibrate" else coach.command.commands[words[0]]
    return CliRunner().invoke(command, [str(word) for word in words[1:]], catch_exceptions=True)


def test_a_jury_is_made_and_certified_on_what_it_has_not_seen(files, monkeypatch):
    monkeypatch.chdir(files)
    on = ("--on", "agent-process-bench", "--data", files / "labels.jsonl")
    jury = Path("jury.json")
    made = run_command(
        "calibrate",
        *on,
        "--judges",
        files / "verdicts.jsonl",
        "--share",
        "0.5",
        "--draws",
        "1",
        "--json",
        "--out",
        jury,
    )
    assert made.exit_code == 0, made.output
    result = json.loads(made.stdout)
    assert (result["questions"], result["left"], result["labels"]) == (20, 20, 60)
    assert max(result["anchor"], key=result["anchor"].get) == "j0"
    calibration = Calibration.read(jury)
    assert [member["options"]["judge"] for member in calibration.members] == ["j0", "j1", "j2"]
    assert len(calibration.fitted_on) == 20
    recipe = (files / "jury.yaml").read_text()
    assert "combine: calibrated" in recipe and f"calibration: {files / 'jury.json'}\n" in recipe

    marked = run_command("eval", *on, "--jury", jury)
    assert "20 of the 40 runs made the weights of jury" in marked.stdout and "--unseen leaves them out" in marked.stdout
    certified = run_command("eval", *on, "--jury", jury, "--unseen", "--json")
    assert certified.exit_code == 0, certified.output
    (evaluation,) = json.loads(certified.stdout)["evaluations"]
    assert evaluation["runs"] == 20
    assert evaluation["left_out"] == {"with a question that a coach was fitted on": 20}
    steps = next(metric for metric in evaluation["coaches"][0]["published"] if metric["name"] == "step accuracy")
    assert steps["all"] > 0.85


def test_a_jury_that_saw_every_question_certifies_nothing(files):
    on = ("--on", "agent-process-bench", "--data", files / "labels.jsonl")
    jury = files / "jury.json"
    made = run_command("calibrate", *on, "--judges", files / "verdicts.jsonl", "--draws", "0", "--out", jury)
    assert made.exit_code == 0, made.output
    assert "40 questions were used, 0 are left for a certificate" in made.stdout
    refused = run_command("eval", *on, "--jury", jury, "--unseen")
    assert "was fitted on every question here" in str(refused.exception)
    hidden = [
        "x.combine=calibrated",
        f"x.calibration={jury}",
        f"x.members={json.dumps(Calibration.read(jury).members)}",
    ]
    nested = run_command("eval", *on, "--coach", "x=ensemble", *hidden)
    assert "40 of the 40 runs made the weights of x" in nested.stdout


ON = ["--on", "agent-process-bench", "--data", "labels.jsonl"]
JUDGES = ["--judges", "verdicts.jsonl"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (JUDGES, "name what is labelled"),
        (ON, "name the members"),
        ([*ON, *JUDGES, "--members", "1"], "at least two"),
        ([*ON, *JUDGES, "--only", "j9"], "--only j9: no member"),
        ([*ON, *JUDGES, "--only", "j1"], "at least two members"),
        ([*ON, *JUDGES, "--limit", "4"], "4 labelled questions: 5 are needed"),
        ([*ON[:-1], "right.jsonl", *JUDGES], "labelled right and wrong: here is one kind"),
        ([*ON[:-1], "one.jsonl", *JUDGES], "without one of these fifths all actions are labelled alike"),
        ([*ON[:-1], "alike.jsonl", *JUDGES, "--share", "0.01"], "--share 0.01: all actions of these 1 questions"),
    ],
)
def test_a_wrong_question_is_said(files, monkeypatch, words, message):
    monkeypatch.chdir(files)
    monkeypatch.setattr("mappa.look.coach_eval.batch_judge.judge_in_turn", None)  # nobody is asked
    lines = (files / "labels.jsonl").read_text().splitlines(keepends=True)
    right = [line.replace(": -1", ": 1") for line in lines]
    wrong = [re.sub(r'("\d+": )-?1', r"\1-1", line) for line in lines]
    (files / "right.jsonl").write_text("".join(right))
    (files / "one.jsonl").write_text("".join([wrong[0], *right[1:]]))
    (files / "alike.jsonl").write_text("".join([*wrong[:20], *right[20:]]))
    found = run_command("calibrate", *words, "--out", "jury.json")
    assert isinstance(found.exception, ConfigError)
    assert message in str(found.exception)
