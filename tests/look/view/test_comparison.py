"""The page that compares two evaluations: which tasks are paired, their gains, wrong addresses."""

from __future__ import annotations

import re
import shutil
import sqlite3
from pathlib import Path
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient

from mappa.look.demo import unpack_demo
from mappa.look.view.web.app import create_app
from mappa.look.view.web.comparison import PairedTasks, TaskPair, is_same_task
from mappa.look.view.web.run_folders import RunFolders
from mappa.runs import RunReader
from mappa_core import Task

TOKEN = "a-token"


def pair(name: str, left: float | None, right: float | None, cluster: str | None = None) -> TaskPair:
    task = Task(id=name, prompt="p", reference="r", cluster=cluster)
    return TaskPair(task=task, words="p", left=(), right=(), left_mean=left, right_mean=right)


def test_gains_are_of_tasks_whose_mean_both_sides_know() -> None:
    paired = PairedTasks(
        pairs=(
            pair("a", 1.0, 0.0),
            pair("b", 0.0, 1.0),
            pair("c", 0.5, 1.0),
            pair("d", 1.0, 1.0),
            pair("e", None, 1.0),
        ),
        unpaired=0,
    )
    gain = paired.gain
    assert gain is not None and gain.mean == pytest.approx((-1 + 1 + 0.5 + 0) / 4)
    assert gain.low is not None and gain.high is not None and gain.low < 0 < gain.high
    assert {which: paired.count(which) for which in ("better", "worse", "differing", "all")} == {  # type: ignore[arg-type]
        "better": 2, "worse": 1, "differing": 3, "all": 5,
    }  # fmt: skip


def test_tasks_of_one_cluster_give_no_interval_and_lost_ones_no_gain() -> None:
    one_cluster = PairedTasks(pairs=(pair("a", 0.0, 1.0, "x"), pair("b", 0.0, 1.0, "x")), unpaired=0)
    assert one_cluster.gain is not None and (one_cluster.gain.mean, one_cluster.gain.low) == (1.0, None)
    assert PairedTasks(pairs=(pair("a", None, 1.0),), unpaired=0).gain is None


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped run, and a copy of it under another name."""
    root = tmp_path_factory.mktemp("runs")
    unpack_demo(root).rename(root / "first")
    shutil.copytree(root / "first", root / "se&cond")
    return root


@pytest.fixture(scope="module")
def client(runs: Path) -> TestClient:
    client = TestClient(create_app(RunFolders([runs]), token=TOKEN), base_url="http://127.0.0.1")
    client.get(f"/?token={TOKEN}")
    return client


def listed_gains(page: str) -> list[float]:
    cells = re.findall(r"<td data-name=\"gain\">(?:<span class=\"[a-z]*\">)?([+-]?[\d.]+)", page)
    return [float(cell) for cell in cells]


def test_without_a_choice_a_run_is_held_against_itself_before_training(client: TestClient, runs: Path) -> None:
    with RunReader(runs / "first") as reader:
        first, *_, last = reader.evaluations
        before = {
            trajectory.task.id: trajectory.outcome[first.metric]
            for trajectory in reader.outcomes(first.iteration, first.part)
        }
        after = {
            trajectory.task.id: trajectory.outcome[last.metric]
            for trajectory in reader.outcomes(last.iteration, last.part)
        }
    expected = sorted(after[task] - before[task] for task in before if after[task] != before[task])
    page = client.get("/compare?run=first").text
    assert f'value="first@{first.iteration}" selected' in page and f'value="first@{last.iteration}" selected' in page
    assert listed_gains(page) == expected
    assert f"{sum(gain > 0 for gain in expected)} better" in page


def test_a_run_with_one_evaluation_is_held_against_no_other(runs: Path, tmp_path: Path) -> None:
    for name in ("one", "other"):
        shutil.copytree(runs / "first", tmp_path / name)
    with sqlite3.connect(tmp_path / "one" / "run.db") as db:
        db.execute("DELETE FROM events WHERE kind = 'evaluation' AND json_extract(body, '$.iteration') > 0")
    client = TestClient(create_app(RunFolders([tmp_path]), token=TOKEN), base_url="http://127.0.0.1")
    client.get(f"/?token={TOKEN}")
    assert "There are not two evaluations to compare" in client.get("/compare?run=one").text
    assert "There are not two evaluations" not in client.get("/compare?right=one@0").text


def test_equal_runs_differ_in_no_task_and_all_of_them_can_be_listed(client: TestClient, runs: Path) -> None:
    with RunReader(runs / "first") as reader:
        last = list(reader.evaluations)[-1].iteration
    query = f"left=first@{last}&right={quote('se&cond')}@{last}"
    assert "No task is differing." in client.get(f"/compare?{query}").text
    everything = client.get(f"/compare?{query}&tasks=all").text
    assert set(listed_gains(everything)) == {0.0} and "mappa compare" in everything


def test_a_task_shows_both_plays_beside_each_other(client: TestClient) -> None:
    page = client.get("/compare?run=first").text
    address = re.findall(r'data-row="([^"]+)"', page)[0].replace("&amp;", "&")
    beside = client.get(address).text
    plays = re.findall(r'hx-get="(/runs/first/trajectory\?id=[^"]+)"', beside)
    assert len(plays) == 2 and plays[0] != plays[1]
    assert all('<article class="action' in client.get(play).text for play in plays)


def test_a_task_with_another_text_or_answer_is_not_the_same() -> None:
    task = Task(id="a", prompt="p", reference="r")
    assert is_same_task(task, Task(id="a", prompt="p", reference="r", stratum="other"))
    assert not is_same_task(task, Task(id="a", prompt="q", reference="r"))
    assert not is_same_task(task, Task(id="a", prompt="p", reference="s"))


@pytest.mark.parametrize(
    ("query", "status", "words"),
    [
        ("left=first@999", 404, "There is no evaluation first@999"),
        ("right=%3Cscript%3E", 404, "There is no evaluation &lt;script&gt;"),
        ("run=first&tasks=some", 400, "must be one of differing, better, worse, all, not some"),
        ("run=first&task=none", 404, "There is no task none"),
        ("run=nobody", 200, "There are not two evaluations to compare"),
    ],
)
def test_a_wrong_address_says_what_is_wrong(client: TestClient, query: str, status: int, words: str) -> None:
    answer = client.get(f"/compare?{query}")
    assert answer.status_code == status and words in answer.text
