"""The commands of a run, as a user types them."""

import json
import re

import pytest

from mappa.cli import main

SMALL = ("train.prompts=2", "train.iterations=2", "tasks.options.eval=8")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of `mappa train` with a folder name of its own."""
    root = tmp_path_factory.mktemp("runs")
    assert main(["train", "--plugin", "mathchat", "--name", "first", *SMALL, f"run.root={root}"]) == 0
    return root / "first"


def test_train_prints_plain_lines_and_the_result_where_there_is_no_terminal(tmp_path, capsys):
    assert main(["train", "--plugin", "mathchat", *SMALL, f"run.root={tmp_path}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "mathchat/tiny (others by --recipe: paper, paper-1.5b, paper-outcome, small, small-full, smol)"
    assert lines[1].startswith("programs of the tool python run in ")
    assert lines[2].startswith("held-out after 0 iterations: correct")
    assert [line.split("  ")[0] for line in lines[3:5]] == ["iteration 1/2", "iteration 2/2"]
    assert {"correct", "parsed", "correct_among_parsed"} <= {line.strip() for line in lines}
    assert any(re.match(r" all .*%.*%.*[+-]", line) for line in lines)
    assert lines[-1].startswith("next     mappa runs show")


def test_train_as_json_prints_one_object_and_nothing_else(tmp_path, capsys):
    assert main(["train", "--plugin", "mathchat", "--json", *SMALL, f"run.root={tmp_path}"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["status"] == "done"
    assert result["eval"]["n"] == 8
    assert json.loads((tmp_path / result["folder"] / "summary.json").read_text())["schema"] == 1


def test_quiet_prints_the_result_alone(tmp_path, capsys):
    settings = (*SMALL, f"run.root={tmp_path}", "sampling.max_tokens=64")
    assert main(["train", "--plugin", "mathchat", "--quiet", *settings]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("held-out correct, 8 problems")
    assert "sampling.max_tokens (command line) has no effect: every agent has an agents.AGENT.max_tokens" in printed.err


def test_a_dry_run_loads_everything_and_writes_nothing(tmp_path, capsys):
    assert main(["train", "--plugin", "mathchat", "--dry-run", f"run.root={tmp_path / 'runs'}"]) == 0
    assert "ready: problem_solver" in capsys.readouterr().out
    assert not (tmp_path / "runs").exists()


def test_the_paper_recipes_say_what_is_not_installed(capsys, monkeypatch):
    monkeypatch.setenv("GEMINI_API_KEY", "none-is-used")
    for recipe in ("paper", "paper-1.5b"):
        assert main(["train", "--plugin", "mathchat", "--recipe", recipe, "--dry-run", "tools.python.use=python"]) == 2
        said = capsys.readouterr().err
        assert "mappa-engine[cluster]" in said


def test_runs_are_listed_shown_and_traced(trained, capsys):
    assert main(["runs", "list", "--root", str(trained.parent)]) == 0
    assert "first" in capsys.readouterr().out
    assert main(["runs", "show", str(trained), "--split", "train", "--iteration", "1"]) == 0
    shown = capsys.readouterr().out
    assert "4 done" in shown
    identity = re.search(r"train-000001/\S+", shown).group()
    assert main(["runs", "trace", str(trained), identity]) == 0
    traced = capsys.readouterr().out
    for part in ("problem_solver, turn 1", "verifier, turn 1", "of 10", "truth", "outcome"):
        assert part in traced


def test_an_unknown_trajectory_or_folder_is_one_message(trained, tmp_path, capsys):
    assert main(["runs", "trace", str(trained), "train-9"]) == 2
    assert "no trajectory 'train-9'" in capsys.readouterr().err
    assert main(["runs", "show", str(tmp_path)]) == 2
    assert main(["train", "--resume", str(tmp_path)]) == 2
    assert main(["eval", "--run", str(tmp_path)]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_a_run_that_is_going_on_cannot_be_resumed_beside_it(trained, capsys):
    from mappa.runs import RunFolder

    with RunFolder.open(trained):
        assert main(["train", "--resume", str(trained)]) == 2
    assert "in use by process" in capsys.readouterr().err


def test_the_report_is_one_page_that_asks_for_nothing(trained):
    page = (trained / "report.html").read_text()
    assert page.count("<svg") == 3
    assert not re.search(r"(src|href)=|https?://(?!www\.w3\.org)", page)
    for agent in ("problem_solver", "code_executor", "verifier"):
        assert agent in page


def test_several_samples_give_pass_at_k(tmp_path, capsys):
    settings = ("tasks.options.eval=4", "eval.samples=3", f"run.root={tmp_path}")
    assert main(["eval", "--plugin", "mathchat", "--pass-at", "1", "--pass-at", "3", "--json", *settings]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["problems"], result["rollouts"]) == (4, 12)
    assert result["pass_at"]["1"] == pytest.approx(result["mean"])
    assert result["pass_at"]["3"] >= result["pass_at"]["1"]
    assert main(["eval", "--plugin", "mathchat", "--avg-at", "0", *settings]) == 2
    assert "--avg-at 0 is less than 1" in capsys.readouterr().err
    assert main(["eval", "--plugin", "mathchat", "--pass-at", "4", *settings]) == 2
