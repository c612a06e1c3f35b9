"""`mappa coach eval` and `mappa judge`, on a run of a team without a model."""

from __future__ import annotations

import json
import math
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from mappa.cli import main
from mappa.look.cli.coach_choices import parse_coaches
from mappa.runs import RunFolder, RunReader
from mappa.testing import load_plugins
from mappa_core import ConfigError, PluginError, Task


@pytest.fixture(scope="module")
def doubles(module_site):
    module_site.install("acme_doubles")
    return module_site


@pytest.fixture(scope="module")
def run(doubles, tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    assert main(["train", "--plugin", "doubles", f"run.root={root}", "run.name=run", "--quiet"]) == 0
    return root / "run"


@pytest.fixture
def copy(run, tmp_path):
    return Path(shutil.copytree(run, tmp_path / "copy"))


@pytest.fixture
def told(run, capsys, monkeypatch):
    """Run a command and return its exit code, what it printed, and what it said beside."""
    monkeypatch.setenv("COLUMNS", "100")

    def tell(*args):
        capsys.readouterr()
        code = main([str(one) for one in args])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return tell


# --- coach eval: choosing ---------------------------------------------------------------------------------------------


def choose(coaches, *settings):
    return parse_coaches(load_plugins(only=("look", "calibration", "doubles", "engine", "sandbox")), coaches, settings)


def test_a_coach_is_named_by_its_offer_or_by_a_name_of_its_own(doubles):
    plain, low, high = choose(["strict", "low=moody", "high=moody"], "low.noise=0.5", "high.noise=4", "high.seed=3")
    assert (plain.name, plain.offer, plain.options.right) == ("strict", "strict", 10.0)
    assert (low.name, low.offer, low.options.noise, low.options.seed) == ("low", "moody", 0.5, 0)
    assert (high.options.noise, high.options.seed) == (4.0, 3)


def test_options_of_a_single_coach_need_no_name(doubles):
    (low,) = choose(["low=moody"], "noise=0.5", "low.seed=3")
    assert (low.options.noise, low.options.seed) == (0.5, 3)


def test_members_of_an_ensemble_have_options_too(doubles):
    (both,) = choose(["both=ensemble"], "both.members=[{use: strict}, {use: moody, options: {noise: 1}}]")
    assert [member.options.__class__.__name__ for member in both.options.members] == ["StrictOptions", "MoodyOptions"]
    assert both.options.members[1].options.noise == 1.0


@pytest.mark.parametrize(
    ("coaches", "settings", "error", "message"),
    [
        (["strict", "strict"], [], ConfigError, "strict is named already; give it another name: --coach NAME=strict"),
        (["a.b=strict"], [], ConfigError, "has a dot in it"),
        (["strickt"], [], PluginError, "no coach is called 'strickt'. Did you mean strict?"),
        (["low=moody"], ["lo.noise=1"], ConfigError, "lo: no --coach is named so, and options are NAME.key=value. Did"),
        (["low=moody"], ["noise=much"], ConfigError, "low.noise: 'much' is not a number"),
        (["low=moody", "strict"], ["noise=1"], ConfigError, "noise: no --coach is named so"),
        (["low=moody"], ["low.nois=1"], ConfigError, "low.nois: not a setting (set by command line). Did you mean low"),
        (["low=moody"], ["low.noise=much"], ConfigError, "low.noise: 'much' is not a number"),
        (["low=moody"], ["low=3"], ConfigError, "low: 3 stands where a section is needed"),
        (["low=moody"], ["low.noise"], ConfigError, "write key=value"),
        (["paid"], [], ConfigError, "paid.model: no value; give one in a config file or as paid.model=VALUE"),
        (["both=ensemble"], ["both.members=[{use: strict, options: {rihgt: 1}}]"], ConfigError, "0.options.rihgt"),
    ],
)
def test_invalid_choice_of_a_coach_is_an_error(doubles, coaches, settings, error, message):
    with pytest.raises(error) as caught:
        choose(coaches, *settings)
    assert message in str(caught.value)


# --- coach eval: printing ---------------------------------------------------------------------------------------------


def test_a_certificate_reads_well(run, told):
    code, out, err = told(
        "coach", "eval", "--run", run, "--coach", "strict", "--coach", "moody", "--coach", "patchy", "--repeats", 2
    )
    # More than a tenth of the verdicts of one of them failed.
    assert code == 3 and "verdicts failed, more than coach.max_missing=10%" in err
    assert max(len(line.rstrip()) for line in out.splitlines()) <= 100
    lines = out.splitlines()
    assert lines[0] == "48 actions of 24 trajectories, each judged 2 times; 50.0 % are right (label above 0.5)"
    assert "the coach was shown the truth for doubler" in out
    assert "trajectories without an outcome, left out: 4 PromptTooLong" in out
    # All is alike, and nothing tells how far off it may be.
    rows = [" ".join(line.split()) for line in lines]
    assert "strict 96 1.00 +1.00" in rows and "strict 0.00 100.0" in rows
    assert "twice as many tokens" in out
    # An agent always acts at the same place, and all even numbers are right: there is nothing to compare.
    assert "one place later" not in out and "task: even against odd" not in out
    assert "x failed: ConnectionError: no route to the coach" in out
    assert "$0: asks nobody" in out
    assert "best member: strict" in out and "whether it differs from its best member cannot be told" in out


def test_a_certificate_as_json_is_one_object(run, told):
    code, out, err = told("coach", "eval", "--run", run, "--coach", "strict", "--coach", "moody", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert [coach["name"] for coach in found["coaches"]] == ["strict", "moody"]
    assert found["coaches"][0]["overall"]["auc"] == {"value": 1.0, "low": None, "high": None}
    assert found["coaches"][0]["noise"] is None
    assert found["coaches"][0]["effort"]["usd_per_1000"] is None
    assert found["ensemble"]["finding"] is None


def test_receivers_of_data_are_announced_before_the_first_call(run, told):
    code, out, err = told("coach", "eval", "--run", run, "--coach", "paid", "paid.model=dear-1", "--limit", 2)
    assert code == 0
    assert "is sent to paid (dear-1) at paid.example" in err
    assert "$10.00" in out


def test_saved_actions_can_be_certified_on(run, told, tmp_path):
    file = tmp_path / "labelled.jsonl"
    saving = told("coach", "eval", "--run", run, "--coach", "moody", "--save", file, "--json")
    loaded = told("coach", "eval", "--file", file, "--coach", "moody", "--json")
    saved, again = json.loads(saving[1]), json.loads(loaded[1])
    assert again["coaches"][0]["overall"] == saved["coaches"][0]["overall"]
    assert again["left_out"] == {}
    assert set(json.loads(file.read_text().splitlines()[0])) == {"scene", "label", "trajectory"}


def test_coach_eval_is_limited_to_one_agent_and_a_number_of_actions(run, told):
    asked = ("coach", "eval", "--run", run, "--coach", "strict", "--agent", "checker", "--limit", 7, "--json")
    found = json.loads(told(*asked)[1])
    assert (found["actions"], found["trajectories"]) == (7, 7)
    assert list(found["coaches"][0]["by_agent"]) == ["checker"]
    assert found["truth_shown"] == []


def test_the_same_run_twice_is_one_run_and_a_copy_is_another(run, copy, told):
    asked = ("coach", "eval", "--run", run, "--run", run, "--run", copy, "--coach", "strict", "--json")
    assert json.loads(told(*asked)[1])["trajectories"] == 48


def test_a_trajectory_that_never_ended_has_no_label(copy, told):
    with RunFolder.open(copy) as folder:
        folder.store.begin_trajectory("train", "train-000009/late/000", Task(id="late", prompt="4"), 0, 9)
    found = json.loads(told("coach", "eval", "--run", copy, "--coach", "strict", "--json")[1])
    assert (found["trajectories"], found["left_out"]) == (24, {"PromptTooLong": 4, "not finished": 1})


@pytest.fixture
def unknown(copy):
    """The run with two trajectories more, of one action each, that ended without an outcome and with none."""
    with RunReader(copy) as reader:
        recorded = reader.trajectory(next(iter(reader.trajectories)).id)
    with RunFolder.open(copy) as folder:
        for sample, outcome in enumerate(({}, {"correct": math.nan})):
            name = f"train-000009/late/{sample:03d}"
            late = replace(recorded, id=name, sample=sample, iteration=9, outcome=outcome, steps=(), verdicts=())
            folder.store.begin_trajectory("train", name, late.task, sample, 9)
            folder.store.record_step(name, replace(recorded.steps[0], id=f"{name}/000"))
            folder.store.end_trajectory(late)
    return copy


def test_an_unknown_outcome_is_counted_and_is_no_wrong_action(unknown, run, told):
    found = json.loads(told("coach", "eval", "--run", unknown, "--coach", "strict", "--json")[1])
    assert found["left_out"] == {"PromptTooLong": 4, "actions: no outcome": 2}
    alone = json.loads(told("coach", "eval", "--run", run, "--coach", "strict", "--json")[1])
    assert (found["actions"], found["right"]) == (alone["actions"], alone["right"])


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--coach", "strict"], "name what is labelled: --run RUN (one or more), --on"),
        (["--coach", "strict", "--run", "a", "--file", "b"], "name what is labelled"),
        (["--coach", "strict", "--run", "nowhere"], "nowhere is not a run folder"),
        (["--coach", "strict", "--file", "nowhere.jsonl"], "nowhere.jsonl is missing"),
        (["--run", "nowhere"], "name who is to be certified: --coach OFFER, --judges FILE of verdicts, or --jury FILE"),
        (["--coach", "strict", "--run", "nowhere", "--repeats", "0"], "Invalid value for '--repeats'"),
    ],
)
def test_wrong_input_is_exit_code_2(told, args, message):
    code, out, err = told("coach", "eval", *args)
    assert (code, out) == (2, "")
    assert message in err


def test_verdicts_on_runs_without_labels_are_kept_too_for_each_repeat(run, told, tmp_path):
    words = (
        "--run",
        run,
        "--coach",
        "paid",
        "paid.model=m",
        "--repeats",
        2,
        "--json",
        "--cassette",
        tmp_path / "said.db",
    )
    first, second = (json.loads(told("coach", "eval", *words)[1])["coaches"][0] for _ in range(2))
    assert (first["counts"]["replayed"], second["counts"]["replayed"]) == (0, 96)
    assert first["overall"] == second["overall"] and (tmp_path / "said-2.db").exists()


@pytest.fixture
def broken(doubles, monkeypatch):
    """The coach `strict` fails always."""
    import acme_doubles

    async def fail(self, scene):
        raise ConnectionError(f"no key {scene.step.position}")

    monkeypatch.setattr(acme_doubles.Strict, "score", fail)


@pytest.mark.parametrize("words", [["--coach", "strict"], ["--coach", "strict", "--json"]])
def test_a_coach_of_which_every_verdict_failed_is_certified_and_then_exit_code_3(run, told, broken, words):
    code, out, err = told("coach", "eval", "--run", run, *words)
    assert code == 3 and ("failed" in out if "--json" in words else "48 (100.0 %)" in out)
    assert err == "Stopped: all 48 verdicts failed, 48 of them by this: ConnectionError: no key 0\n"


def test_a_run_that_nobody_could_judge_again_is_exit_code_3(copy, told, broken):
    code, out, err = told("judge", copy, "--coach", "strict")
    assert (code, out.startswith("strict: 44 verdicts (0 scored, 0 abstained, 44 failed)\n")) == (3, True)
    assert "44 x failed: ConnectionError: no key 0" in out
    assert err.startswith("Stopped: all 44 verdicts failed, 44 of them by this: ConnectionError: no key 0")


@pytest.mark.parametrize(("missing", "code"), [(0.4, 3), (0.5, 0)])
def test_a_run_of_which_too_many_verdicts_failed_is_exit_code_3_and_keeps_the_others(
    copy, told, monkeypatch, missing, code
):
    """Half of the 44 fail."""
    import acme_doubles

    score, asked = acme_doubles.Strict.score, []

    async def fail(self, scene):
        asked.append(scene)
        if len(asked) % 2:
            raise ConnectionError("no key")
        return await score(self, scene)

    monkeypatch.setattr(acme_doubles.Strict, "score", fail)
    found, out, err = told("judge", copy, "--coach", "strict", f"coach.max_missing={missing}")
    assert (found, out.startswith("strict: 44 verdicts (22 scored, 0 abstained, 22 failed)\n")) == (code, True)
    assert ("22 of 44 verdicts failed, more than coach.max_missing=40%" in err) == (code == 3)
    with RunReader(copy) as reader:
        stored = [reader.trajectory(row.id) for row in reader.trajectories]
    again = [verdict for trajectory in stored for verdict in trajectory.verdicts if verdict.phase == "again"]
    assert sum(verdict.status == "scored" for verdict in again) == 22


# --- coach eval: against counterfactual rollouts ----------------------------------------------------------------------


@pytest.mark.parametrize(("overflow", "more"), [("unsolved", 0), ("unknown", 1)])
def test_what_outgrew_the_window_is_wrong_where_the_run_learned_so(copy, told, overflow, more):
    """Beside the tasks that are too long alone, which are left out of either run."""
    asked = ("coach", "eval", "--run", copy, "--coach", "strict", "--against", "outcome", "--json")
    whole = json.loads(told(*asked)[1])
    with RunReader(copy) as reader:
        outgrown = next(row.id for row in reader.trajectories.where(split="train") if row.status == "done")
        lost = len(reader.trajectory(outgrown).steps)
        quoted = {step.id: 80 for step in reader.trajectory(outgrown).steps}
    error = json.dumps({"kind": "PromptTooLong", "message": "80 > 64", "quoted": quoted})
    with closing(sqlite3.connect(copy / "run.db")) as database, database:
        database.execute("UPDATE trajectories SET outcome = '{}', error = ? WHERE id = ?", (error, outgrown))
    config = copy / "config.yaml"
    config.write_text(config.read_text().replace("overflow: unsolved", f"overflow: {overflow}"))
    # A run whose settings were changed is a stranger's.
    found = json.loads(told(*asked, "--trust")[1])
    assert found["left_out"] == {"PromptTooLong": whole["left_out"]["PromptTooLong"] + more}
    assert found["actions"] == whole["actions"] - more * lost


@pytest.fixture(scope="module")
def replaced(doubles, tmp_path_factory):
    """A run in which the doubler's actions were replaced by `6`, and the checker's by `0`."""
    root = tmp_path_factory.mktemp("replaced")
    credit = "credit.counterfactual={use: default, default_actions: {doubler: '6', checker: '0'}}"
    assert main(["train", "--plugin", "doubles", f"run.root={root}", "run.name=run", "--quiet", credit]) == 0
    return root / "run"


def test_blame_is_compared_with_counterfactual_credit(replaced, told):
    code, out, err = told("coach", "eval", "--run", replaced, "--coach", "strict", "--against", "counterfactual")
    assert (code, err) == (0, "")
    # Of the numbers 2 to 10, twice 3 alone is 6 where the doubler said something else.
    with RunReader(replaced) as reader:
        three = [row for row in reader.trajectories.where(split="train") if row.task == "n3" and row.status == "done"]
    assert f"in {len(three)} of them another action helps" in out
    assert "lowest score is guilty" in out and "x nobody blamed in the trajectory" in out
    assert max(len(line.rstrip()) for line in out.splitlines()) <= 100
    code, out, _ = told(
        "coach", "eval", "--run", replaced, "--coach", "strict", "--against", "counterfactual", "--json"
    )
    found = json.loads(out)
    assert code == 0 and found["guilty"] == len(three) and found["coaches"][0]["lowest"]["trajectories"] == len(three)


@pytest.mark.parametrize(
    ("extra", "message"),
    [([], "has a counterfactual credit: name runs that were trained"), (["--repeats", "2"], "leave --repeats out")],
)
def test_blame_without_counterfactual_rollouts_is_exit_code_2(run, told, extra, message):
    code, _, err = told("coach", "eval", "--run", run, "--coach", "strict", "--against", "counterfactual", *extra)
    assert code == 2 and message in err


def test_counterfactual_rollouts_are_listed_only_where_they_are_asked_for(replaced, told):
    assert "counterfactual" not in told("runs", "show", replaced)[1]
    _, out, _ = told("runs", "show", replaced, "--split", "counterfactual")
    assert "counterfactual/train-000002/" in out


# --- judge ------------------------------------------------------------------------------------------------------------


def test_a_run_is_judged_again_and_the_change_is_shown(copy, told):
    code, out, err = told("judge", copy, "--coach", "strict", "right=0", "wrong=10")
    assert (code, err) == (0, "")
    assert max(len(line.rstrip()) for line in out.splitlines() if str(copy) not in line) <= 100
    assert out.startswith("strict: 44 verdicts (44 scored, 0 abstained, 0 failed)\n")
    assert "-1.00 44 (100.0 %)" in " ".join(out.split())
    assert "biggest movers" in out
    mover = next(line.split()[0] for line in out.splitlines() if line.startswith("train-"))
    assert f"mappa runs trace {copy} TRAJECTORY" in out
    code, out, _ = told("runs", "trace", copy, mover)
    assert code == 0 and out.count("strict") == 4


def test_the_runs_own_coach_keeps_its_options(copy, told, doubles):
    told("judge", copy, "--coach", "strict", "right=6", "coach.timeout_s=9", "--limit", 1)
    with RunReader(copy) as reader:
        (event,) = reader.events("judge")
    assert event.body["coach"]["options"] == {"right": 6.0, "wrong": 0.0}
    assert event.body["coach"]["timeout_s"] == 9.0


def test_judge_as_json_is_one_object(copy, told):
    code, out, err = told("judge", copy, "--coach", "moody", "noise=3", "--iteration", 1, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert (found["coach"], found["stands_for"], list(found["by_iteration"])) == ("moody", "live", ["1"])
    assert 0 <= found["overall"]["flip_share"] <= 1
    assert found["overall"]["correlation"].keys() == {"value", "low", "high"}
    assert found["movers"][0].keys() >= {"step", "trajectory", "agent", "before", "after"}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--coach", "strickt"], "coach.use: no coach is called 'strickt'. Did you mean strict?"),
        (["--coach", "strict", "rihgt=1"], "coach.options.rihgt: not a setting"),
        (["--coach", "strict", "--iteration", "9"], "holds no train rollouts of iteration 9 that ended"),
    ],
)
def test_run_that_cannot_be_judged_again_is_exit_code_2(run, told, args, message):
    code, out, err = told("judge", run, *args)
    assert (code, out) == (2, "")
    assert message in err


def test_a_run_in_use_is_exit_code_2(copy, told):
    with RunFolder.open(copy):
        code, _, err = told("judge", copy, "--coach", "strict")
    assert code == 2
    assert "is in use by process" in err
