"""Damaged run folders and hostile addresses, generated: an error of the input in one line, and nothing half made."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from urllib.parse import urlencode

import pytest
import stores
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from mappa.cli import main
from mappa.look.view.web.app import create_app
from mappa.look.view.web.run_folders import RunFolders
from mappa.look.view.web.trajectories import FILTER_PARAMETERS
from mappa.runs import RunReader

TOKEN, HERE = "the-token-of-this-test", "http://127.0.0.1"
PAGES = ("trajectories", "newer", "trajectory", "prompt", "coach", "policies")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stores.fill(tmp_path_factory.mktemp("small"), "small", 24)


@pytest.fixture(scope="module")
def identity(small: Path) -> str:
    with RunReader(small) as reader:
        return next(iter(reader.trajectories)).id


def client_of(root: Path) -> TestClient:
    client = TestClient(create_app(RunFolders([root]), token=TOKEN), base_url=HERE)
    client.get(f"/?token={TOKEN}")
    return client


_numbers = st.sampled_from(
    ["1e300", "-1e300", "1e18", "9223372036854775808", "-9223372036854775809", "nan", "inf", "1_0", "0x1", "9" * 5_000]
) | st.floats().map(str) | st.integers().map(str)  # fmt: skip
_texts = st.sampled_from(['"', '"a', "a AND", "NEAR(", "*", "a:b", "full:", "\0", "-", "()", "^"]) | st.text(
    max_size=12
)
_parameters = st.dictionaries(
    st.sampled_from([*FILTER_PARAMETERS, "before", "after", "id", "step", "outcome", "run"]),
    _numbers | _texts,
    max_size=6,
)


def check_addresses(small: Path, page: str, parameters: dict[str, str]) -> int:
    """Ask for a page; returns the status."""
    query = urlencode([(name, value.encode(errors="replace")) for name, value in parameters.items()])
    answer = client_of(small.parent).get(f"/runs/{small.name}/{page}?{query}")
    assert answer.status_code in (200, 400, 404), answer.text
    return answer.status_code


@settings(max_examples=60, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(page=st.sampled_from(PAGES), parameters=_parameters)
def test_no_address_is_a_fault_of_the_server(small, page, parameters):
    check_addresses(small, page, parameters)


@pytest.mark.soak
@settings(max_examples=3_000, deadline=None, suppress_health_check=list(HealthCheck))
@given(page=st.sampled_from(PAGES), parameters=_parameters)
def test_no_address_of_thousands_is_a_fault_of_the_server(small, page, parameters):
    check_addresses(small, page, parameters)


@pytest.mark.parametrize("number", ["1e300", "-1e300", "9223372036854775808", "nan", "inf"])
@pytest.mark.parametrize("name", ["before", "iteration", "low", "disagreement"])
def test_a_number_that_no_database_holds_is_refused(small, name, number):
    answer = client_of(small.parent).get(f"/runs/{small.name}/trajectories?{name}={number}")
    assert answer.status_code == 400 and f"{name}: {number} is no number" in answer.text


_damages = st.one_of(
    st.tuples(st.just("overwrite"), st.integers(0, 10**9), st.binary(min_size=1, max_size=5_000)),
    st.tuples(st.just("cut"), st.integers(0, 10**9), st.just(b"")),
    st.tuples(st.just("repeat"), st.integers(0, 10**9), st.binary(min_size=1, max_size=8)),
    st.tuples(st.just("replace"), st.just(0), st.binary(max_size=200)),
)


def damage(path: Path, kind: str, place: int, content: bytes) -> None:
    if kind == "events":
        with closing(sqlite3.connect(path)) as database, database:
            database.execute("UPDATE events SET body = ?", [content.decode()])
        return
    data = bytearray(path.read_bytes())
    at = place % max(1, len(data))
    if kind == "overwrite":
        data[at : at + len(content)] = content
    elif kind == "cut":
        del data[at:]
    elif kind == "repeat":  # what a bad cable does: a byte here and there
        for offset in range(0, 64_000 if data else 0, 997):
            data[(at + offset) % len(data)] ^= content[offset % len(content)]
    else:
        data[:] = content
    path.write_bytes(data)


def check_damaged(small: Path, folder: Path, identity: str, capsys: pytest.CaptureFixture[str], *damages) -> int:
    """Read a damaged run by commands and pages; returns how many refused it."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(small, folder / "run")
    for name, (kind, place, content) in damages:
        damage(folder / "run" / name, kind, place, content)
    page, refused = folder / "page.html", 0
    capsys.readouterr()
    for arguments in (
        ["report", str(folder / "run"), "--out", str(page)],
        ["runs", "show", str(folder / "run")],
        ["runs", "trace", str(folder / "run"), identity],
        ["train", "--resume", str(folder / "run"), "--dry-run"],
    ):
        code, printed = main(arguments), capsys.readouterr()
        assert code in (0, 2), (arguments, printed.err)
        refused += code == 2
        if code == 2:
            assert printed.err.startswith("Error: ") and "Traceback" not in printed.err
            assert not page.exists() or arguments[0] != "report", "half a report"
    client = client_of(folder)
    for name in PAGES:
        answer = client.get(f"/runs/run/{name}", params={"id": identity, "after": 0, "step": f"{identity}/000"})
        assert answer.status_code in (200, 400, 404, 409), answer.text
        refused += answer.status_code != 200
    return refused


@pytest.mark.parametrize(
    "body", ["{}", '{"iteration": [], "alarms": 1, "warnings": {}, "agent": {}, "version": [], "text": 0}', "[]", "x"]
)
def test_events_of_other_content_are_an_error_of_the_input(small, identity, tmp_path, capsys, body):
    check_damaged(small, tmp_path / "damaged", identity, capsys, ("run.db", ("events", 0, body.encode())))


def test_a_schema_that_is_no_utf8_is_an_error_of_the_input(small, identity, tmp_path, capsys):
    place = (small / "run.db").read_bytes().index(b"CREATE TABLE events") + len("CREATE TABLE events(")
    damages = ("run.db", ("overwrite", place, b"\xc9\xc9"))
    assert check_damaged(small, tmp_path / "damaged", identity, capsys, damages)


_files = st.sampled_from(["run.db", "run.db", "run.db", "summary.json", "config.yaml"])


@pytest.mark.slow
@settings(max_examples=15, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(damages=st.lists(st.tuples(_files, _damages), min_size=1, max_size=2))
def test_a_damaged_run_is_an_error_of_the_input(small, identity, tmp_path, capsys, damages):
    check_damaged(small, tmp_path / "damaged", identity, capsys, *damages)


@pytest.mark.soak
@settings(max_examples=1_000, deadline=None, suppress_health_check=list(HealthCheck))
@given(damages=st.lists(st.tuples(_files, _damages), min_size=1, max_size=2))
def test_a_damaged_run_of_a_thousand_is_an_error_of_the_input(small, identity, tmp_path, capsys, damages):
    check_damaged(small, tmp_path / "damaged", identity, capsys, *damages)


def two_hundred(strategy: st.SearchStrategy[tuple], check: Callable[..., int]) -> list[int]:
    results: list[int] = []

    @settings(max_examples=200, derandomize=True, database=None, deadline=None, phases=[Phase.generate])
    @given(drawn=strategy)
    def once(drawn):
        results.append(check(*drawn))

    once()
    assert len(results) == 200
    return results


@pytest.mark.soak
def test_two_hundred_damaged_runs(small, identity, tmp_path, capsys):
    damaged = st.lists(st.tuples(_files, _damages), min_size=1, max_size=2)
    refused = two_hundred(damaged, lambda *damages: check_damaged(small, tmp_path / "x", identity, capsys, *damages))
    with capsys.disabled():
        print(f"{len(refused)} of 200 damaged runs: {sum(map(bool, refused))} refused by a command or a page")


@pytest.mark.soak
def test_two_hundred_hostile_addresses(small, capsys):
    status = two_hundred(st.tuples(st.sampled_from(PAGES), _parameters), partial(check_addresses, small))
    with capsys.disabled():
        print(f"{len(status)} of 200 addresses: {status.count(400)} were answered 400, {status.count(404)} 404")
