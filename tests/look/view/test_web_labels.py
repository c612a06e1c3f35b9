"""The one thing that the viewer writes: labels, from its own pages alone, and only where it was started for that."""

from __future__ import annotations

import json
import re

import pytest
from starlette.testclient import TestClient

from mappa.cli import main
from mappa.look.view.web.app import create_app
from mappa.look.view.web.run_folders import RunFolders
from mappa.runs import RunFolder, RunReader

TOKEN = "the-token-of-this-test"
HERE = "http://127.0.0.1"
PLAY = "train-000000/q0/000"
PAGE = f"/runs/run/trajectory?id={PLAY}"
POST = "/runs/run/label"


@pytest.fixture
def run(tmp_path):
    said = [{"role": "user", "content": "2+2?"}]
    said += [{"role": "assistant", "name": name, "content": "5"} for name in ("<b>ann", "bob")]
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps({"id": f"q{number}", "messages": said}) + "\n" for number in range(2)))
    assert main(["import", str(log), "--task-id", "id", "--root", str(tmp_path / "runs"), "--name", "run"]) == 0
    return tmp_path / "runs" / "run"


def open_viewer(run, labeller="me"):
    app = create_app(RunFolders([run]), token=TOKEN, labeller=labeller)
    client = TestClient(app, base_url=HERE, follow_redirects=False)
    client.get(f"/?token={TOKEN}")
    return client


@pytest.fixture
def client(run):
    return open_viewer(run)


def key_of(client):
    return re.search(r'name="key" value="([^"]+)"', client.get(PAGE).text)[1]


def post(client, *, headers=None, key=None, **changed):
    fields = {"id": PLAY, "key": key_of(client) if key is None else key, "who": "bob", "step": "2", "why": "Sum."}
    sent = {"origin": HERE, **(headers or {})}
    return client.post(POST, data={**fields, **changed}, headers={k: v for k, v in sent.items() if v is not None})


def kept(run):
    with RunReader(run) as reader:
        return [(one.agent, one.step, one.reason, one.labeller) for one in reader.labels()]


def test_a_label_is_kept_and_shown_and_can_be_changed(client, run):
    assert client.get(PAGE).text.count('<form id="label"') == 1
    answer = post(client)
    assert (answer.status_code, answer.headers["location"]) == (
        303,
        "/runs/run/trajectory?id=train-000000%2Fq0%2F000#label",
    )
    assert kept(run) == [("bob", f"{PLAY}/001", "Sum.", "me")]
    page = client.get(PAGE).text
    assert "label of me: bob is to blame, in this step" in page and "Change the label" in page
    assert "next play without a label" in page and "1 left" in page
    assert post(client, who="task", step="", why="two\r\nlines").status_code == 303
    assert kept(run) == [("task", None, "two\nlines", "me")]


def test_names_of_agents_are_text_in_the_form(client, run):
    page = client.get(PAGE).text
    assert "<b>ann" not in page and "&lt;b&gt;ann" in page
    assert post(client, who="<b>ann", step="1").status_code == 303
    assert kept(run)[0][0] == "<b>ann"


def test_a_viewer_that_was_not_started_for_labels_writes_nothing(run):
    client = open_viewer(run, labeller=None)
    assert '<form id="label"' not in client.get(PAGE).text
    assert client.post(POST, data={"id": PLAY, "who": "bob"}, headers={"origin": HERE}).status_code == 404
    assert kept(run) == []


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": None},
        {"origin": "https://127.0.0.1"},
        {"origin": "http://127.0.0.1:8000"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_what_another_page_sends_is_refused(client, run, headers):
    assert post(client, headers=headers).status_code == 403
    assert kept(run) == []


@pytest.mark.parametrize("key", ["", "guessed", "é"])
def test_a_form_without_the_key_of_this_server_is_refused(client, run, key):
    assert post(client, key=key).status_code == 403
    assert post(client, key=key_of(open_viewer(run))).status_code == 403
    assert kept(run) == []


def test_without_the_token_nothing_is_written(client, run):
    key = key_of(client)
    stranger = TestClient(client.app, base_url=HERE, follow_redirects=False)
    assert post(stranger, key=key).status_code == 403
    elsewhere = TestClient(client.app, base_url="http://evil.example", cookies=client.cookies)
    assert post(elsewhere, key=key, headers={"origin": "http://evil.example"}).status_code == 421
    assert kept(run) == []


def test_a_get_writes_nothing(client, run):
    assert client.get(f"{POST}?id={PLAY}&who=bob&key={key_of(client)}").status_code == 405
    assert kept(run) == []


@pytest.mark.parametrize(
    ("changed", "status", "says"),
    [
        ({"who": "carol"}, 400, "did not act here"),
        ({"step": "3"}, 400, "there is no step 3"),
        ({"step": "9" * 5000}, 400, "is not the number of a step"),
        ({"step": "-1"}, 400, "is not the number of a step"),
        ({"id": "elsewhere"}, 404, "There is no trajectory elsewhere"),
        ({"why": "x" * 10_001}, 400, "may have 10,000"),
        ({"why": "x" * 200_000}, 413, "too long"),
    ],
)
def test_a_label_that_fits_no_play_is_refused(client, run, changed, status, says):
    answer = post(client, **changed)
    assert answer.status_code == status and says in answer.text
    assert kept(run) == []


def test_other_bodies_are_refused(client):
    headers = {"origin": HERE}
    assert client.post(POST, json={"id": PLAY}, headers=headers).status_code == 415
    broken = client.post(
        POST, content=b"\xff=1", headers={**headers, "content-type": "application/x-www-form-urlencoded"}
    )
    assert broken.status_code == 400


def test_a_run_that_is_being_written_keeps_no_label(client, run):
    with RunFolder.open(run):
        answer = post(client)
    assert answer.status_code == 409 and "is in use by process" in answer.text
    assert kept(run) == []


def test_the_report_asks_for_no_label(run):
    assert main(["report", str(run)]) == 0
    assert "<form" not in (run / "report.html").read_text()
