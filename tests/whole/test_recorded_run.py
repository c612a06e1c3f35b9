"""A run that was recorded elsewhere, the shipped one, is reported, viewed, compared, shown and observed."""

from __future__ import annotations

import json
import shutil

import pytest
from starlette.testclient import TestClient

from mappa import runs
from mappa.cli import main
from mappa.look.demo import unpack_demo
from mappa.look.view.web.app import create_app
from mappa.look.view.web.run_folders import RunFolders

PAGES = ("trajectories", "newer?after=0", "coach", "policies")


@pytest.fixture
def folder(tmp_path):
    return unpack_demo(tmp_path / "runs")


def test_it_is_reported(folder, capsys):
    assert main(["report", str(folder), "--audit", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["status"] == "done" and printed["report"] == str(folder / "report.html")
    page = (folder / "report.html").read_text()
    with runs.open(folder) as run:
        assert f"{len(list(run.verdicts))} verdicts." in page and "problem_solver" in page


def test_every_page_of_the_viewer_shows_it(folder):
    client = TestClient(create_app(RunFolders([folder]), token="token"), base_url="http://127.0.0.1")
    assert client.get("/?token=token").status_code == 200
    with runs.open(folder) as run:
        trajectory = next(iter(run.trajectories.where(split="train"))).id
        step = run.trajectory(trajectory).steps[0].id
    for page in (*PAGES, f"trajectory?id={trajectory}", f"prompt?step={step}"):
        answer = client.get(f"/runs/demo/{page}")
        assert answer.status_code == 200, f"{page}: {answer.text}"


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
    assert printed["rollouts"] == 16 and {*printed["agents"]} >= {"problem_solver", "verifier"}


@pytest.mark.parametrize("words", [("report",), ("runs", "show"), ("observe",), ("view",), ("compare",)])
def test_a_folder_that_is_no_run_is_refused(tmp_path, words, capsys):
    broken = tmp_path / "empty"
    broken.mkdir()
    assert main([*words, str(broken)]) == 2
    said = capsys.readouterr().err
    assert str(broken) in said and "Traceback" not in said
