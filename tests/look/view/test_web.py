"""The viewer by its addresses: who may look, that no text breaks a page, filters, pages, what changes while a run is
under way, and what is no run."""

from __future__ import annotations

import re
import shutil
import socket
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote

import pytest
import stores
from click.testing import CliRunner
from starlette.testclient import TestClient

from mappa.cli import main
from mappa.look.cli.view import command
from mappa.look.view.web.app import STATIC_FILES, create_app
from mappa.look.view.web.run_folders import RunFolders
from mappa.runs import RunFolder, RunReader
from mappa_core import ConfigError

TOKEN = "the-token-of-this-test"
HERE = "http://127.0.0.1"


@pytest.fixture(scope="module")
def both(root: Path) -> Path:
    """Beside the run `hostile` one that has only begun."""
    with RunFolder.create(root, "begun", plugin="p", recipe="r", config="seed: 0\n"):
        pass
    return root


@pytest.fixture(scope="module")
def client(both: Path) -> TestClient:
    client = TestClient(create_app(RunFolders([both]), token=TOKEN), base_url=HERE)
    client.get(f"/?token={TOKEN}")
    return client


@pytest.fixture(scope="module")
def trajectory(root: Path) -> str:
    """One with every kind of text: it has tool output, breaches, members, and is whole."""
    with RunReader(root / "hostile") as reader:
        rows = list(reader.trajectories)[:60]
        return next(row.id for row in rows if row.status == "done" and reader.trajectory(row.id).steps[3].breaches)


def pages(trajectory: str) -> list[str]:
    run = "/runs/hostile"
    return [
        "/",
        "/?run=hostile",
        "/compare?run=hostile",
        f"{run}/trajectories",
        f"{run}/trajectories?words=%3Cscript%3E&stratum={quote(stores.STRATA[2])}",
        f"{run}/trajectory?id={quote(trajectory, safe='')}",
        f"{run}/prompt?step={quote(trajectory + '/5', safe='')}",
        f"{run}/newer?after=3",
        f"{run}/coach",
        f"{run}/coach?outcome=fair",
        f"{run}/policies",
        "/runs/begun/trajectories",
        "/runs/begun/coach",
        "/runs/begun/policies",
        "/runs/nobody/coach",
    ]


# --- who may look ---------------------------------------------------------------------------------------------------


def test_the_token_comes_once_and_stays_in_a_cookie_that_scripts_do_not_see(root: Path) -> None:
    stranger = TestClient(create_app(RunFolders([root]), token=TOKEN), base_url=HERE, follow_redirects=False)
    for address in ("/", "/runs/hostile/trajectories", "/static/view.js", f"/?token={TOKEN}x", "/?token="):
        refused = stranger.get(address)
        assert refused.status_code == 403 and "hostile" not in refused.text.lower()
    let_in = stranger.get(f"/runs/hostile/coach?outcome=fair&token={TOKEN}")
    assert (let_in.status_code, let_in.headers["location"]) == (303, "/runs/hostile/coach?outcome=fair")
    odd = stranger.get(f"/runs/50%25%20%231%3Fx%C3%A9/coach?token={TOKEN}")
    assert odd.headers["location"] == "/runs/50%25%20%231%3Fx%C3%A9/coach"
    cookie = let_in.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie
    assert stranger.get("/").status_code == 200


def test_a_name_of_elsewhere_that_leads_here_is_refused(client: TestClient) -> None:
    for host in ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", ""):
        assert client.get("/", headers={"host": host}).status_code == 421
    for host in ("127.0.0.1:9000", "localhost", "localhost:80", "[::1]:80", "[::1]"):
        assert client.get("/", headers={"host": host}).status_code in (200, 403)
    moved = client.get(f"//evil.example/?token={TOKEN}", follow_redirects=False)
    assert moved.headers["location"].startswith("/") and not moved.headers["location"].startswith("//")


def test_every_answer_forbids_what_is_of_elsewhere(client: TestClient, trajectory: str) -> None:
    for address in [*pages(trajectory), "/static/view.css", "/static/nothing", "/nowhere"]:
        policy = client.get(address).headers["content-security-policy"]
        assert policy.startswith("default-src 'self';") and "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy and "form-action 'self'" in policy


# --- no text breaks a page ------------------------------------------------------------------------------------------


class Tags(HTMLParser):
    """Every tag and attribute, and whether elements are closed in the order in which they were opened."""

    VOID = frozenset({"meta", "link", "input", "br", "hr", "base", "img"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[tuple[str, str | None]] = set()
        self.open: list[str] = []
        self.text: list[str] = []
        self.crossed: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= set(attrs)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= set(attrs)

    def handle_endtag(self, tag: str) -> None:
        if self.open and self.open[-1] == tag:
            self.open.pop()
        else:
            self.crossed.append(tag)

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_hostile_text_is_shown_and_is_no_part_of_the_page(client: TestClient, trajectory: str) -> None:
    for address in pages(trajectory):
        page = Tags(client.get(address).text)
        assert page.crossed == [] and page.open == [], address
        assert page.tags.isdisjoint({"img", "base", "iframe", "object", "style", "i"}), address
        assert not [name for name, _ in page.attributes if name.startswith("on") or name == "style"], address
        targets = [value or "" for name, value in page.attributes if name in ("href", "src", "action", "hx-get")]
        assert all(re.match(r"[/#]", target) or target == "" for target in targets), address


def test_a_trajectory_shows_every_word_of_it(client: TestClient, root: Path, trajectory: str) -> None:
    page = Tags(client.get(f"/runs/hostile/trajectory?id={quote(trajectory, safe='')}").text)
    shown = "".join(page.text)
    with RunReader(root / "hostile") as reader:
        found = reader.trajectory(trajectory)
    texts = [found.task.prompt, found.task.reference]
    for step in found.steps:
        texts += [step.reply.reasoning, *(result.stdout for result in step.results), *(b.path for b in step.breaches)]
        texts += [change.path for result in step.results for change in result.files]
    for verdict in found.verdicts:
        texts += [
            verdict.reasoning,
            verdict.error,
            verdict.correction,
            *(member.reasoning for member in verdict.members),
        ]
    seen = [text for text in texts if text]
    assert len(seen) > 80
    for text in seen:
        for line in re.split(r"[\x00-\x1f\u202a-\u202e\ufeff\ud800-\udfff]", text):
            assert line in shown
    assert "\u202e" not in shown and "\x1b" not in shown


# --- what is shown --------------------------------------------------------------------------------------------------


def test_reading_on_shows_every_trajectory_once(client: TestClient, root: Path) -> None:
    with RunReader(root / "hostile") as reader:
        expected = [row.id for row in reader.trajectories][::-1]
    address, seen = "/runs/hostile/trajectories", []
    while address:
        page = client.get(address).text
        seen += re.findall(r'title="(\d{5}/[^"]+)"', page)
        more = re.search(r'class="more" hx-get="([^"]+)"', page)
        address = more[1].replace("&amp;", "&") if more else ""
    assert [one.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&") for one in seen] == expected


def test_filters_stand_in_the_address_and_lead_from_one_trajectory_to_the_next(client: TestClient) -> None:
    page = client.get("/runs/hostile/trajectories?failure=ToolError&agent=coder").text
    links = [link.replace("&amp;", "&") for link in re.findall(r'data-row="([^"]+)"', page)]
    assert links and all(link.endswith("&agent=coder&failure=ToolError") for link in links)
    one = client.get(links[1]).text
    newer, older = (re.search(rf'href="([^"]+)" data-key="\{key}"', one)[1] for key in "[]")  # type: ignore[index]
    assert [found.replace("&amp;", "&") for found in (newer, older)] == [links[0], links[2]]
    assert '<option value="ToolError" selected>' in page


def test_the_overview_sets_runs_side_by_side(client: TestClient) -> None:
    page = client.get("/").text
    assert page.count('type="checkbox"') == 2 and "no summary" in page
    assert "61.0 % <small>[52.0, 70.0]</small>" in page and "Accuracy of training rollouts" in page
    assert "None of the chosen runs has finished an iteration yet." in client.get("/?run=begun").text


@pytest.mark.parametrize(
    ("address", "status", "said"),
    [
        ("/runs/none/coach", 404, "There is no run none."),
        ("/runs/hostile/trajectory", 400, "id is missing"),
        ("/runs/hostile/trajectory?id=nothing", 404, "There is no trajectory nothing."),
        ("/runs/hostile/prompt?step=nothing", 404, "There is no action nothing."),
        ("/runs/hostile/trajectory.json?id=nothing", 404, "There is no trajectory nothing."),
        ("/runs/hostile/action.json?id=nothing", 404, "There is no action nothing."),
        ("/runs/none/action.json?id=nothing", 404, "There is no run none."),
        ("/runs/hostile/trajectories?low=much", 400, "low: much is no number"),
        ("/runs/hostile/trajectories?before=nan", 400, "before: nan is no number"),
        ("/runs/hostile/trajectories?column=body", 400, "column: must be one of"),
        ("/runs/hostile/newer", 400, "after is missing"),
        ("/static/..%2f..%2fpyproject.toml", 404, ""),
        ("/static/view.html", 404, "There is no such file."),
    ],
)
def test_address_that_cannot_be_shown_is_answered_with_status_and_reason(
    client: TestClient, address: str, status: int, said: str
) -> None:
    answer = client.get(address)
    assert answer.status_code == status and said in answer.text


def test_a_damaged_run_is_told_and_the_others_are_shown(both: Path, tmp_path: Path) -> None:
    shutil.copytree(both / "begun", tmp_path / "well")
    shutil.copytree(both / "begun", tmp_path / "broken")
    (tmp_path / "broken" / "run.db").write_bytes(b"no database at all" * 400)
    some = TestClient(create_app(RunFolders([tmp_path]), token=TOKEN), base_url=HERE)
    page = some.get(f"/?token={TOKEN}").text
    assert "is not a database" in page and ">well</a>" in page
    assert some.get("/runs/broken/coach").status_code == 409


# --- while a run is under way ---------------------------------------------------------------------------------------


def test_a_page_that_asks_again_is_answered_only_where_something_was_written(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, "live", plugin="p", recipe="r", config="seed: 0\n") as folder:
        live = TestClient(create_app(RunFolders([tmp_path]), token=TOKEN), base_url=HERE)
        live.get(f"/?token={TOKEN}")
        one, *others = stores.iteration_of(0, 0, 5)
        stores.record(folder, one)
        address = f"/runs/live/trajectory?id={quote(one.id, safe='')}"
        listed = live.get("/runs/live/trajectories").text
        newest = re.search(r'hx-get="(/runs/live/newer\?after=\d+)"', listed)[1]  # type: ignore[index]
        for asked in ("/", address, "/runs/live/coach", newest):
            seen = _stamp(live.get(asked).text)
            assert live.get(asked, headers={"mappa-seen": seen}).status_code == 204
        assert "newer: show" not in live.get(newest).text
        for other in others:
            stores.record(folder, other)
        assert live.get(newest, headers={"mappa-seen": seen}).status_code == 200
        assert "4 newer: show" in live.get(newest).text


def _stamp(page: str) -> str:
    return re.search(r'data-seen="([0-9a-f]+)"', page)[1]  # type: ignore[index]


# --- files and command ----------------------------------------------------------------------------------------------


def test_all_that_a_page_loads_ships_with_the_package(client: TestClient, trajectory: str) -> None:
    page = Tags(client.get("/").text)
    loaded = {value for name, value in page.attributes if (value or "").startswith("/static/")}
    assert loaded == {f"/static/{name}" for name in STATIC_FILES}
    for name, kind in STATIC_FILES.items():
        answer = client.get(f"/static/{name}")
        assert answer.status_code == 200 and answer.headers["content-type"].startswith(kind)
        assert not re.search(rb"(src|href|url\(|import).{0,3}https?:", answer.content)


def test_folder_without_runs_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path, said in ((tmp_path, "there is no run in"), (tmp_path / "nothing", "is no folder")):
        with pytest.raises(ConfigError, match=said):
            RunFolders([path])
        assert main(["view", str(path)]) == 2
    assert "mappa view" not in capsys.readouterr().out


def test_runs_of_one_name_are_told_apart(root: Path, tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, "hostile", plugin="p", recipe="r", config="seed: 0\n"):
        pass
    folders = RunFolders([root / "hostile", root / "hostile", tmp_path]).folders()
    assert sorted(folders) == ["hostile", "hostile~"] and len(set(folders.values())) == 2


def test_missing_extra_of_the_viewer_is_named(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "mappa.look.view.web.server", raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["view", str(root)]) == 2
    assert 'pip install "mappa[view]"' in capsys.readouterr().err


def test_a_port_that_is_taken_is_an_error_with_advice(root: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        failed = CliRunner().invoke(command, [str(root), "--port", str(port)])
    assert isinstance(failed.exception, ConfigError) and f"--port {port}" in str(failed.exception)
