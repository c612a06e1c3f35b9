"""What is shown of a run that trained nothing: the figures that `mappa observe` prints of it, on every page."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import stores
from starlette.testclient import TestClient

import mappa
from mappa.cli import main
from mappa.look.observe import observe_run
from mappa.look.view.plays import summarize_plays
from mappa.look.view.report import write_report
from mappa.look.view.web.app import create_app
from mappa.look.view.web.run_folders import RunFolders
from mappa.look.view.web.telling import first_filters
from mappa.runs import RunFolder, RunReader
from mappa.store.summary import Summary
from mappa_core import Role, Verdict


@pytest.fixture(scope="module")
def client(imported: Path) -> TestClient:
    client = TestClient(create_app(RunFolders([imported]), token="t"), base_url="http://127.0.0.1")
    client.get("/?token=t")
    return client


def words(page: str) -> str:
    """The text of a page without its tags, on one line."""
    return " ".join(re.sub(r"<style>.*?</style>|<[^>]*>", " ", page, flags=re.DOTALL).split())


def test_the_figures_are_those_of_observe(imported: Path) -> None:
    diagnosis = observe_run(imported)
    with RunReader(imported) as reader:
        plays = summarize_plays(reader)
    assert plays.imported and (plays.count, plays.problems, plays.unsuccessful) == (4, 4, 3)
    assert plays.shares == {"correct": diagnosis.evaluation.interval} and plays.shares["correct"].mean == 0.25
    assert plays.blame.looked_at == diagnosis.looked_at == 3
    assert plays.blame.ranked == {"budgeter": 2, "environment": 2}
    assert plays.blame.others == diagnosis.blamed_others
    assert plays.blame.categories == diagnosis.categories == {"miscalculation": 2, "system failure": 2}
    assert plays.blame.unblamed == diagnosis.cannot_tell == 0


def test_blame_counts_every_verdict_however_many_there_are(imported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the plays whose verdicts a limit cut off it was said that no verdict blames anybody."""
    read = RunReader.latest_verdicts

    def read_few(self: RunReader, split: str, *, limit: int | None) -> list:
        return read(self, split, limit=None if limit is None else 3)

    monkeypatch.setattr(RunReader, "latest_verdicts", read_few)
    with RunReader(imported) as reader:
        plays = summarize_plays(reader)
    assert (plays.blame.unblamed, plays.blame.ranked) == (0, {"budgeter": 2, "environment": 2})


def test_the_list_of_runs_shows_plays_in_place_of_iterations(client: TestClient) -> None:
    page = client.get("/").text
    shown = words(page)
    assert "trips imported 4 25.0 % [4.6, 69.9] 3 budgeter 2 environment 2 cannot tell 0" in shown
    assert "miscalculation 2 system failure 2" in shown
    assert "has finished an iteration" not in page and "tokens/s" not in page


def test_the_list_in_the_terminal_shows_what_the_plays_came_to(imported: Path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["runs", "list", "--root", str(imported.parent)]) == 0
    head, line = capsys.readouterr().out.splitlines()
    assert head.split() == ["run", "what", "to", "blame", "plays", "success"]
    assert line.split() == ["trips", "imported", "budgeter", "2,", "environment", "2", "4", "25.0", "%"]
    assert main(["runs", "list", "--root", str(imported.parent), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert (listed["plays"]["count"], listed["plays"]["shares"]["correct"]["mean"]) == (4, 0.25)


def test_the_report_in_the_terminal_says_the_same(imported: Path, capsys) -> None:
    assert main(["report", str(imported)]) == 0
    shown = capsys.readouterr().out
    assert "correct 25.0 % [4.6, 69.9] over 4 problems, 95 % intervals; 3 of 4 plays did not succeed" in shown
    assert "to blame in those: budgeter 2, environment 2\n" in shown
    assert main(["report", "--json", str(imported)]) == 0
    assert json.loads(capsys.readouterr().out)["plays"]["unsuccessful"] == 3


def test_a_reader_begins_at_the_failures_below_what_the_plays_came_to(client: TestClient) -> None:
    page = client.get("/runs/trips").text
    shown = words(page)
    assert "4 plays, imported 25.0 % correct [4.6, 69.9] 3 did not succeed" in shown
    assert "budgeter 2 of 3 environment 2 of 3 cannot tell 0 of 3" in shown
    assert page.count("<tr data-row=") == 3
    (address,) = re.findall(r'<td><a href="([^"]*blame=budgeter)"', page)
    assert client.get(address.replace("&amp;", "&")).text.count("<tr data-row=") == 2


def test_only_what_there_is_to_choose_from_is_a_filter_or_a_column(client: TestClient) -> None:
    page = client.get("/runs/trips/trajectories").text
    assert 'name="blame"' in page and 'name="verdict"' in page
    for missing in ("iteration", "stratum", "disagreement", "breach", "failure"):
        assert f'name="{missing}"' not in page and f'data-name="{missing}"' not in page
    assert 'name="failure"' in client.get("/runs/trips/trajectories?failure=ToolError").text


def test_a_run_that_learns_nothing_is_not_waited_for(client: TestClient) -> None:
    assert "imported: it trains no policy" in client.get("/runs/trips/policies").text


def test_the_report_says_what_the_plays_came_to_and_why_they_failed(imported: Path) -> None:
    with RunReader(imported) as reader:
        page = write_report(imported, reader.summary).read_text()
    shown = words(page)
    assert "imported, 4 plays, done" in shown and "0 iterations" not in shown
    assert "correct 25.0 % [4.6, 69.9] over 4 problems, 95 % intervals. 3 of 4 plays did not succeed." in shown
    assert "budgeter 4 1.0 2 2 of 3" in shown and "The environment is to blame in 2." in shown
    assert "Kinds of failure: miscalculation 2, system failure 2." in shown


def test_names_of_strangers_are_text(tmp_path: Path) -> None:
    evil = "<script>alert('x')</script>&amp;\u202e"
    with RunFolder.create(tmp_path, "strange", plugin="p", recipe="r", config="seed: 0\n") as folder:
        for one in stores.iteration_of(0, 0, 3):
            first = one.steps[0]
            given = Verdict(status="scored", score=1.0, step=first.id, coach=evil, id=evil, blame=evil, category=evil)
            stores.record(folder, replace(one, outcome={evil: 0.0}, error=None, verdicts=(given,)))
        folder.store.record_event("team", agents={evil: Role(brief=evil)}, metric=evil)
    client = TestClient(create_app(RunFolders([tmp_path]), token="t"), base_url="http://127.0.0.1")
    pages = [client.get(address).text for address in ("/?token=t", "/runs/strange", "/runs/strange/trajectories")]
    blank = Summary(plugin=evil, recipe=evil, recipe_hash="h", seed=0, status="done")
    pages.append(write_report(folder.path, blank).read_text())
    assert "to blame in those" in pages[0] and "to blame in those that did not succeed" in pages[1]
    for page in pages:
        assert "<script>alert" not in page and "\u202e" not in page
        assert "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&amp;amp;‹U+202E›" in page


def test_failures_of_a_training_without_an_evaluation_are_by_the_metric_of_its_team(tmp_path: Path) -> None:
    """As of one that was stopped before its first evaluation: by `correct` there were none."""
    with RunFolder.create(tmp_path, "stopped", plugin="p", recipe="r", config="seed: 0\n") as folder:
        for one in stores.iteration_of(0, 0, 3):
            given = Verdict(status="scored", score=1.0, step=one.steps[0].id, coach="c", id="v", blame="coder")
            stores.record(folder, replace(one, outcome={"solved": 0.0}, error=None, verdicts=(given,)))
        folder.store.record_event("team", agents={"coder": Role(brief="codes")}, metric="solved")
    trained = mappa.TrainedRun(folder.path, Summary(plugin="p", recipe="r", recipe_hash="h", seed=0, status="stopped"))
    assert trained.failures == 3 and trained.blame["coder"] == 3
    with RunReader(folder.path) as reader:
        assert first_filters(reader) == {"split": "train", "outcome": "short:solved"}


def test_a_training_is_no_such_run(root: Path) -> None:
    with RunReader(root / "hostile") as reader:
        assert reader.summary is not None and summarize_plays(reader) is None
