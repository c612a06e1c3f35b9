"""A run that mappa-core 0.1.0 made is resumed, reported, viewed, compared, shown and observed by today's commands."""

from __future__ import annotations

import json
import shutil

import pytest
from starlette.testclient import TestClient

from mappa import runs
from mappa.cli import main
from mappa.look.view.web.app import create_app
from mappa.look.view.web.run_folders import RunFolders

PAGES = ("trajectories", "newer?after=0", "coach", "policies")


@pytest.fixture
def folder(build_old_run, tmp_path):
    return build_old_run(tmp_path / "runs" / "old")


def test_it_is_resumed_and_what_it_had_stays(folder, capsys):
    with runs.open(folder) as run:
        before, iterations = list(run.trajectories), list(run.iterations)
    assert main(["train", "--resume", str(folder), "train.iterations=3"]) == 0
    capsys.readouterr()
    with runs.open(folder) as run:
        after, figures = list(run.trajectories), list(run.iterations)
        assert run.summary.status == "done" and run.summary.iterations == 3
        assert sorted(run.checkpoints)[-1] == 3
    # The rows of an evaluation that is made anew after the resume are added.
    assert {row.id for row in before} < {row.id for row in after}
    assert [figure.metrics() for figure in figures[:2]] == [iteration.metrics() for iteration in iterations] and len(
        figures
    ) == 3


def test_it_is_reported(folder, capsys):
    assert main(["report", str(folder), "--audit", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["status"] == "done" and printed["report"] == str(folder / "report.html")
    page = (folder / "report.html").read_text()
    with runs.open(folder) as run:
        assert f"{len(list(run.verdicts))} verdicts." in page and "problem_solver" in page
    assert main(["report", str(folder)]) == 0


def test_every_page_of_the_viewer_shows_it(folder):
    client = TestClient(create_app(RunFolders([folder]), token="token"), base_url="http://127.0.0.1")
    assert client.get("/?token=token").status_code == 200
    with runs.open(folder) as run:
        trajectory = next(iter(run.trajectories.where(split="train"))).id
        step = run.trajectory(trajectory).steps[0].id
    for page in (*PAGES, f"trajectory?id={trajectory}", f"prompt?step={step}"):
        answer = client.get(f"/runs/old/{page}")
        assert answer.status_code == 200, f"{page}: {answer.text}"
    assert trajectory in client.get("/runs/old/trajectories").text


def test_two_copies_of_it_are_compared(folder, capsys):
    copy = folder.with_name("copy")
    shutil.copytree(folder, copy)
    assert main(["compare", "--arm", f"one={folder}", "--arm", f"other={copy}", "--json"]) == 0
    (pair,) = json.loads(capsys.readouterr().out)["pairs"]
    assert pair["difference"]["mean"] == 0.0 and pair["finding"] != "better"


def test_it_is_shown_and_traced(folder, capsys):
    with runs.open(folder) as run:
        row, *_ = run.trajectories.where(split="train")
    assert main(["runs", "list", "--root", str(folder.parent)]) == 0
    assert main(["runs", "show", str(folder), "--split", "train"]) == 0
    assert main(["runs", "trace", str(folder), row.id]) == 0
    assert "problem_solver" in capsys.readouterr().out


def test_it_is_observed(folder, capsys):
    assert main(["observe", str(folder), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["rollouts"] == 4 and {*printed["agents"]} >= {"problem_solver", "verifier"}


@pytest.mark.parametrize("words", [("report",), ("runs", "show"), ("observe",), ("view",), ("compare",)])
def test_a_folder_that_is_no_run_is_refused(folder, words, capsys):
    broken = folder / "checkpoints"
    assert main([*words, str(broken)]) == 2
    said = capsys.readouterr().err
    assert str(broken) in said and "Traceback" not in said
