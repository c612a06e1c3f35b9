"""`mappa improve` as it is typed."""

import json
import shlex

import pytest

from mappa.cli import main
from mappa_core import Coach
from mappa_gepa.relay.team import Relay

SMALL = ["--rollouts", "80", "--propose", "12", "--choose", "6", "--report", "8", "--minibatch", "2", "--patience", "3"]
EXACT = "policies.default.options.slip=0"
TEAM = ["--plugin", "gepa", "--proposer", "instruction-editor"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def improve(capsys, *arguments):
    """Exit code, standard output and standard error."""
    code = main(["improve", *arguments])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_improve_prints_the_diff_the_gain_and_the_next_command(capsys):
    code, out, err = improve(
        capsys, *TEAM, *SMALL, "--name", "first", EXACT, "proposer.price={input: 1.0, output: 1.0}"
    )
    assert code == 0
    lines = out.splitlines()
    assert "+Sort the words by the alphabet." in lines
    assert "8 tasks that chose nothing: better" in out
    assert "proposals: 1, of which 1 kept and 0 refused; $0.0" in out
    assert "next      mappa eval --recipe gepa/tiny --config runs/first/improved.yaml" in lines
    assert "is sent to instruction-editor" in err
    assert main(["eval", "--recipe", "gepa/tiny", "--config", "runs/first/improved.yaml", "--json", EXACT]) == 0
    assert json.loads(capsys.readouterr().out)["rollouts"] == 64


def test_printed_next_command_runs_for_any_folder_name(capsys):
    _, out, _ = improve(capsys, *TEAM, *SMALL, "--name", "two words", EXACT)
    (following,) = [line.removeprefix("next ") for line in out.splitlines() if line.startswith("next ")]
    assert main([*shlex.split(following)[1:], "--json", EXACT, "eval.problems=2"]) == 0
    assert main(["observe", "runs/two words"]) == 0
    assert "mappa runs trace 'runs/two words' ID" in capsys.readouterr().out


def test_a_finished_search_is_resumed_to_the_same_result(capsys):
    _, first, _ = improve(capsys, *TEAM, *SMALL, "--json", "--name", "again", EXACT)
    code, second, _ = improve(capsys, "--resume", "runs/again", "--json")
    assert code == 0 and json.loads(second) == json.loads(first)
    assert json.loads(first)["gain"]["low"] > 0


def test_a_search_starts_from_a_run_with_its_config(capsys):
    improve(capsys, *TEAM, *SMALL, "--json", "--name", "before", EXACT)
    arguments = ("--run", "runs/before", "--proposer", "instruction-editor", *SMALL, "--json")
    code, out, _ = improve(capsys, *arguments, "agents.sorter.prompt=null")
    assert code == 0 and json.loads(out)["changed"] == [], "nothing is to be mended once the prompt is the package's"


class Broken(Coach):
    async def score(self, scene):
        raise ValueError("no key")


def test_improve_says_that_no_verdict_led_to_a_proposal(capsys, monkeypatch):
    monkeypatch.setattr("mappa_gepa.relay.coach.DutyCoach", Broken)
    code, out, _ = improve(capsys, *TEAM, *SMALL, "--name", "none", EXACT)
    assert code == 0 and "gain      none: nothing was proposed, as no verdict takes points from an agent" in out
    assert "next      mappa observe runs/none" in out.splitlines()
    assert main(["observe", "runs/none"]) == 0
    assert "failed: ValueError: no key" in capsys.readouterr().out


def test_improve_says_that_nothing_needs_mending(capsys):
    whole = f"agents.sorter.prompt={json.dumps(Relay.prompts['sorter'])}"
    code, out, _ = improve(capsys, *TEAM, *SMALL, EXACT, whole)
    assert code == 0 and "gain      none: the original prompts solve every task that chooses" in out
    assert "mappa observe" not in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*TEAM, "--max-growth", "nan"), "--max-growth: must be at least 1 and finite, not nan"),
        ((*TEAM, "--max-growth", "inf"), "--max-growth: must be at least 1 and finite, not inf"),
        ((*TEAM, "--report", "-5"), "--report: must be at least 2, not -5"),
        (("--plugin", "gepa"), "no proposer was named: --proposer OFFER"),
        ((*TEAM, "--resume", "runs/x"), "leave out --plugin"),
        (("--resume", "runs/x", "--rollouts", "9"), "give nothing beside it but KEY=VALUE"),
        (("--resume", "runs/x"), "runs/x"),
        (("--plugin", "gepa", "--proposer", "instruction-editer"), "Did you mean instruction-editor or"),
        ((*TEAM, "proposer.mood=good"), "proposer.mood: not a setting"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(capsys, arguments, message):
    code, out, err = improve(capsys, *arguments)
    assert code == 2 and out == ""
    assert message in err and "Traceback" not in err


def test_a_resumed_search_keeps_its_config(capsys):
    improve(capsys, *TEAM, *SMALL, "--json", "--name", "kept", EXACT)
    code, _, err = improve(capsys, "--resume", "runs/kept", "seed=5")
    assert code == 2 and "seed: 0 -> 5" in err


@pytest.fixture
def logged(tmp_path):
    """An imported run."""
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "name": "w", "content": "a"}]
    (tmp_path / "log.jsonl").write_text(json.dumps({"messages": messages}))
    assert main(["import", "log.jsonl", "--name", "logged"]) == 0
    return "runs/logged"


@pytest.mark.parametrize(
    "words",
    [
        ("improve", "--run", "runs/logged", "--proposer", "instruction-editor"),
        ("advise", "runs/logged", "--rollouts", "20", "--proposer", "instruction-editor"),
    ],
)
def test_an_imported_run_cannot_be_played_and_is_refused_at_once(capsys, logged, words):
    capsys.readouterr()
    assert main(list(words)) == 2
    err = capsys.readouterr().err
    assert "runs/logged was imported: its actions were recorded elsewhere" in err and "unknown" not in err


def test_a_report_of_a_search_says_what_the_folder_holds(capsys):
    improve(capsys, *TEAM, *SMALL, "--name", "searched", EXACT)
    assert main(["report", "runs/searched"]) == 2
    err = " ".join(capsys.readouterr().err.split())
    assert "runs/searched holds a search for prompts" in err and "mappa observe runs/searched" in err
    assert "mappa train" not in err
