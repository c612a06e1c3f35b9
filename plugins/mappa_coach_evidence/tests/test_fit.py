"""Weights from labels: the arithmetic against a slow reference, what few labels may move, the file, and the command."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import minimize

from mappa.cli import main
from mappa.judging import read_benchmark
from mappa_coach_evidence.coach import EvidenceCoach
from mappa_coach_evidence.fitted_on import shipped_questions
from mappa_coach_evidence.fitting import Choice, fit_weights, fit_with_variance, log_odds
from mappa_coach_evidence.habits import describe_habits
from mappa_coach_evidence.options import EvidenceOptions
from mappa_coach_evidence.transcript import read_transcript
from mappa_coach_evidence.validation import validate
from mappa_coach_evidence.weights import WEIGHTS
from mappa_coach_evidence.weights_file import WeightsFile, hash_weights, read_weights
from mappa_core import ConfigError

from .conversations import conversation

BLAME = Path(__file__).parents[4] / "shared" / "data" / "blame"
needs_data = pytest.mark.skipif(not BLAME.is_dir(), reason="the public sets of labelled failures are not here")


def make_choice(number, features, decisive, *, question=None):
    marks = np.array([place in decisive for place in range(len(features))])
    return Choice(
        question=question or f"q{number}",
        places=tuple(range(len(features))),
        features=tuple(features),
        decisive=marks,
        by_guilty=marks,
        has_step=True,
    )


def random_choices(count, seed=0, actions=5):
    random = np.random.default_rng(seed)
    found = []
    for number in range(count):
        features = [{"x": float(random.normal()), "y": float(random.integers(2))} for _ in range(actions)]
        odds = [2.0 * one["x"] - 1.0 * one["y"] + random.gumbel() for one in features]
        found.append(make_choice(number, features, {int(np.argmax(odds))}))
    return found


# --- the arithmetic ---------------------------------------------------------------------------------------------------


def test_a_fit_is_the_maximum_of_the_penalised_likelihood_that_scipy_finds():
    given, variance = {"x": 0.5, "y": 0.0, "unseen": 3.0}, 0.7
    choices = [*random_choices(12), make_choice(99, [{"x": 1.0}, {"x": 2.0}, {"y": 1.0}], {0, 2})]

    def loss(weights):
        total = sum((w - given[name]) ** 2 for w, name in zip(weights, ("x", "y"), strict=True)) / (2 * variance)
        for choice in choices:
            odds = np.exp(log_odds(choice.features, dict(zip(("x", "y"), weights, strict=True))))
            total -= math.log(odds[choice.decisive].sum() / odds.sum())
        return total

    wanted = minimize(loss, [0.0, 0.0], tol=1e-10).x
    found = fit_with_variance(choices, given, variance)
    assert [found["x"], found["y"]] == pytest.approx(wanted, abs=1e-4)
    # What no choice has keeps the weight that it was given.
    assert found["unseen"] == 3.0


def test_only_what_is_free_moves():
    choices = random_choices(12)
    found = fit_with_variance(choices, {"y": 0.25}, 1.0, free=["x"])
    assert found["y"] == 0.25 and found["x"] > 0.5


def test_labels_that_say_nothing_new_move_nothing():
    random = np.random.default_rng(1)
    features = [[{"x": float(random.normal())} for _ in range(6)] for _ in range(10)]
    noise = [make_choice(n, one, {int(random.integers(6))}) for n, one in enumerate(features)]
    fit = fit_weights(noise, {"x": 0.0})
    assert fit.variance == 0.0 and fit.weights == {"x": 0.0}


def test_a_habit_is_learned_from_ten_labels():
    choices = [make_choice(n, [{"agent a": 1.0}, {"agent b": 1.0}, {"agent a": 1.0}], {1}) for n in range(10)]
    fit = fit_weights(choices, {"lateness": -0.5})
    assert fit.variance > 0 and fit.weights["agent b"] > 0 > fit.weights["agent a"]
    assert fit.weights["lateness"] == -0.5


def test_plays_that_tell_nothing_apart_are_left_out():
    choices = random_choices(12)
    beside = [make_choice(77, [{"x": 5.0}], {0}), make_choice(78, [{"x": 1.0}, {"x": 2.0}], set())]
    assert fit_with_variance([*choices, *beside], {}, 1.0) == fit_with_variance(choices, {}, 1.0)


def test_questions_are_left_out_whole_where_a_fit_is_held_against_labels():
    # In each question all plays are decided in one place, and no two questions in the same one: who sees the label of a
    # sibling is right, who does not is wrong.
    features = [{f"at {place}": 1.0} for place in range(6)]
    choices = [make_choice(n, features, {n % 6}, question=f"q{n % 6}") for n in range(24)]
    found = validate(choices, {})
    assert found.plays == 24 and found.common.mean == 0.0 and found.fitted.mean <= 1 / 6


def test_validation_compares_with_the_given_weights_and_the_most_common_place():
    features = [{"x": 0.0}, {"x": 1.0}, {"x": 2.0}]
    choices = [make_choice(n, features, {0 if n % 4 else 1}) for n in range(20)]
    found = validate(choices, {"x": 1.0})
    assert (found.shipped.mean, found.common.mean, found.fitted.mean) == (0.0, 0.75, 0.75)
    assert found.over_shipped.low > 0 and found.over_common.mean == 0.0 and not found.is_better and not found.is_worse


# --- habits -----------------------------------------------------------------------------------------------------------


def test_habits_say_who_where_and_how_long():
    scenes = conversation(("a", "one 1"), ("b", ""), ("a", "22 and 3,5 and 7"))
    found = describe_habits(read_transcript(scenes), (0, 1, 2))
    assert found[0]["first action"] == 1.0 and "last action" not in found[0] and found[2]["last action"] == 1.0
    assert found[1] == {
        "agent b": 1.0,
        "actions before": math.log(2),
        "actions after": math.log(2),
        "length": pytest.approx(0.5 * math.log(2)),
    }
    assert found[2]["numbers"] == pytest.approx(math.log(4)) and found[2]["length"] > found[0]["length"]


# --- the file ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def made(tmp_path):
    """A file by which agent b is always suspected first."""
    weights = {**WEIGHTS, "agent b": 20.0}
    found = WeightsFile(
        version=1, rules=hash_weights(WEIGHTS), variance=1.0, plays=10, weights=weights, fitted_on=["question"]
    )
    found.write(tmp_path / "own.json")
    return tmp_path / "own.json"


async def test_a_coach_with_weights_of_ones_own_ranks_by_them_and_accuses_as_before(made):
    scenes = conversation(("a", "2 + 2 = 5"), ("b", "It is so."), ("a", "FINAL ANSWER: 5"))
    shipped, own = EvidenceCoach(EvidenceOptions()), EvidenceCoach(EvidenceOptions(weights=str(made)))
    before, after = await shipped.review(scenes), await own.review(scenes)
    assert max(range(3), key=lambda place: before[place].suspicion) == 0
    assert max(range(3), key=lambda place: after[place].suspicion) == 1
    assert [replace(one, suspicion=None) for one in before] == [replace(one, suspicion=None) for one in after]
    assert set(shipped.fitted_on) == shipped_questions() and set(own.fitted_on) == {*shipped_questions(), "question"}


def test_a_file_that_was_changed_or_made_for_other_rules_or_is_none_is_refused(made, tmp_path):
    rules = hash_weights(WEIGHTS)
    assert read_weights(str(made), rules=rules).weights["agent b"] == 20.0
    with pytest.raises(ConfigError, match="was fitted for other rules of the coach"):
        read_weights(str(made), rules="of another version")
    made.write_text(made.read_text().replace("20.0", "21.0"))
    with pytest.raises(ConfigError, match="was changed since mappa coach fit evidence wrote it"):
        read_weights(str(made), rules=rules)
    for text in ("", "[]", "{}", '{"version": 1}', '{"weights": {"x": "1"}}'):
        made.write_text(text)
        with pytest.raises(ConfigError, match="is no file that mappa coach fit evidence wrote"):
            read_weights(str(made), rules=rules)
    with pytest.raises(ConfigError, match="is no file"):
        read_weights(str(tmp_path / "nowhere.json"), rules=rules)


# --- the command ------------------------------------------------------------------------------------------------------


def write_log(path, plays, **keys):
    """Plays of three agents; `plays` yields the guilty agent and step of each."""
    rows = []
    for number, (who, at) in enumerate(plays):
        said = [{"role": "user", "content": f"Question {number}?"}]
        said += [{"role": "assistant", "name": name, "content": f"{name} says so."} for name in "abca"]
        rows.append({"id": f"q{number}", "messages": said, "who": who, "at": at, **keys})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def import_plays(tmp_path):
    def call(plays, name="run"):
        log = write_log(tmp_path / f"{name}.jsonl", plays)
        words = ["--task-id", "id", "--guilty-agent", "who", "--guilty-step", "at", "--name", name]
        assert main(["import", str(log), *words, "--root", str(tmp_path)]) == 0
        return tmp_path / name

    return call


def test_ten_labels_make_a_coach_that_is_certified_and_used(import_plays, tmp_path, capsys):
    run, out = import_plays([("c", 3)] * 10), tmp_path / "own.json"
    assert main(["coach", "fit", "evidence", "--run", str(run), "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "10 of 10 labelled plays say which of several actions decided" in shown
    assert "fitted to your labels" in shown and "most common place of your labels" in shown
    assert "habit: agent c +" in shown
    # The most common place is as good here, so that nothing is certain beyond it.
    assert "not certainly better than both" in shown
    assert f"mappa judge {run} --coach evidence weights={out}" in shown
    capsys.readouterr()
    words = ["--run", str(run), "--coach", "evidence", f"evidence.weights={out}"]
    assert main(["coach", "eval", *words]) == 0
    assert "10 of the 10 runs made the weights of evidence" in capsys.readouterr().out
    other = import_plays([("c", 3)] * 4, name="other")
    assert main(["judge", str(other), "--coach", "evidence", f"weights={out}", "--quiet"]) == 0


def test_the_result_is_one_json_object_too(import_plays, tmp_path, capsys):
    run = import_plays([("c", 3)] * 6)
    capsys.readouterr()
    assert main(["coach", "fit", "evidence", "--run", str(run), "--out", str(tmp_path / "own.json"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["validation"]["plays"] == 6 and document["fit"]["variance"] >= 0


@pytest.mark.parametrize(
    ("plays", "says"),
    [
        ([("nobody", None)] * 4, "the labels of these 4 plays are all of one kind (4 say that nobody failed)"),
        ([("user", None)] * 3, "(3 name no action that the coach can blame)"),
        ([("c", 3)] * 2, "the labels are of 2 questions, and a fit needs 3 or more"),
    ],
)
def test_a_fit_with_one_class_is_exit_code_2(import_plays, tmp_path, capsys, plays, says):
    run, out = import_plays(plays), tmp_path / "own.json"
    assert main(["coach", "fit", "evidence", "--run", str(run), "--out", str(out)]) == 2
    assert says in capsys.readouterr().err and not out.exists()


def test_a_run_without_labels_is_said(tmp_path, capsys):
    log = write_log(tmp_path / "log.jsonl", [("c", 3)])
    assert main(["import", str(log), "--task-id", "id", "--root", str(tmp_path), "--name", "run"]) == 0
    assert main(["coach", "fit", "evidence", "--run", str(tmp_path / "run"), "--out", str(tmp_path / "o.json")]) != 0
    assert "no labelled rollout in" in capsys.readouterr().err


@needs_data
def test_ninety_of_who_and_when_made_the_shipped_weights():
    runs = read_benchmark("who-and-when", [BLAME / "who_and_when.jsonl.gz"]).runs
    assert (sum(run.task.question_hash in shipped_questions() for run in runs), len(runs)) == (90, 184)
