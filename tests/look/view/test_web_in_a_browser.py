"""The viewer in headless Chromium: hostile text does nothing, keys, and a page that changes under the reader."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import browser
import pytest
import stores
import uvicorn

from mappa.look.demo import unpack_demo
from mappa.look.sweep import Sweep, SweepArm, SweepRun, collect_results
from mappa.look.view.report import write_page
from mappa.look.view.sweep_page import write_sweep_page
from mappa.look.view.web.app import create_app
from mappa.look.view.web.run_folders import RunFolders
from mappa.look.view.web.telling import telling_address
from mappa.runs import RunFolder, RunReader

pytestmark = pytest.mark.skipif(
    browser.chromium() is None and "CI" not in os.environ, reason="no Chromium is installed: make chromium"
)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that is shipped: a training with two evaluations."""
    return unpack_demo(tmp_path_factory.mktemp("demo"))


@pytest.fixture(scope="module")
def written(root: Path, demo: Path, imported: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages that are files: reports of three runs, and of a sweep whose two settings have long names."""
    folder = tmp_path_factory.mktemp("written")
    for run in (root / "hostile", demo, imported):
        with RunReader(run) as reader:
            write_page(folder / f"{run.name}.html", [(run, reader.summary)], audit=run == imported)
    words = [("train.learning_rate=0.0002", f"estimator={{use: {name}, options: {{}}}}") for name in ("rloo", "gae")]
    for arm in ("arm1", "arm2"):
        (folder / f"{arm}-s0").symlink_to(demo)
    sweep = Sweep(
        plugin="mathchat",
        recipe="tiny",
        blocked=(),
        arms=tuple(SweepArm(name=f"arm{number}", title=own[0], words=own) for number, own in enumerate(words, 1)),
        runs=tuple(SweepRun(arm=arm, seed=0, folder=f"{arm}-s0", status="done") for arm in ("arm1", "arm2")),
    )
    write_sweep_page(folder, collect_results(folder, sweep), ["A note."])
    return folder


@pytest.fixture(scope="module")
def address(root: Path, demo: Path, imported: Path) -> Iterator[str]:
    """Where the viewer of `root`, of the run that is shipped and of an imported one answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        app = create_app(RunFolders([root, demo, imported]), token="open")
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        server.should_exit = True
        thread.join(30)


@pytest.fixture(scope="module")
def tab(address: str):
    with browser.browser() as tab:
        tab.resize(1280, 800)
        tab.open(f"{address}/?token=open")
        assert tab.run("location.search") == ""
        yield tab


def test_no_page_runs_what_an_agent_wrote_or_asks_elsewhere(tab, address: str, root: Path) -> None:
    with RunReader(root / "hostile") as reader:
        one = next(row.id for row in reader.trajectories if row.status == "done")
    run = f"{address}/runs/hostile"
    for page in (
        f"{address}/",
        f"{run}/trajectories",
        f"{run}/coach",
        f"{run}/policies",
        f"{run}/trajectory?id={quote(one, safe='')}",
    ):
        tab.open(page)
        assert tab.run("document.documentElement.scrollWidth") <= 1280, f"{page} is too wide for a laptop"
    tab.run("document.querySelectorAll('details').forEach((one) => (one.open = true))")
    tab.until("document.querySelectorAll('.lazy .message').length > 80")
    assert tab.run("document.querySelector('h1').innerText").startswith("‹U+202E›right to left")
    assert tab.run("document.querySelectorAll('main').length") == 1
    assert [one for one in tab.requested if not one.startswith(address)] == []
    assert tab.complaints == [] and tab.dialogs == []


MEASURE = """(() => {
  const texts = [...document.querySelectorAll('body *')].filter((one) => one.getClientRects().length
    && [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim()))
  const scale = (one) => one.ownerSVGElement ? Math.abs(one.getScreenCTM().d) : 1
  const size = (one) => parseFloat(getComputedStyle(one).fontSize) * scale(one)
  const outside = (inner, outer) => inner.left < outer.left - 1 || inner.right > outer.right + 1
  const frame = (one) => one.closest('svg.chart') ?? one.closest('.legend')
  return {
    wide: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    small: texts.filter((one) => size(one) < 10).map((one) => one.textContent),
    clipped: texts.filter((one) => frame(one)
      && outside(one.getBoundingClientRect(), frame(one).getBoundingClientRect())).map((one) => one.textContent),
  }
})()"""
"""How much wider the page is than the window (pixels), texts below 10 pixels, and those that leave their chart."""


@pytest.mark.parametrize("width", [400, 1300])
@pytest.mark.parametrize(
    "page",
    [
        "/", "/compare", "/runs/hostile/trajectories", "/runs/hostile/coach", "/runs/hostile/policies",
        "/runs/demo/trajectories", "/runs/demo/coach", "/runs/demo/policies", "/runs/trips", "/runs/trips/coach",
        "hostile.html", "demo.html", "trips.html", "sweep.html",
    ],
)  # fmt: skip
def test_a_page_fits_a_phone_and_a_laptop(tab, address: str, written: Path, page: str, width: int) -> None:
    tab.resize(width, 800)
    tab.open(f"{address}{page}" if page.startswith("/") else (written / page).as_uri())
    assert tab.run(MEASURE) == {"wide": 0, "small": [], "clipped": []}
    assert tab.run(f"[...document.querySelectorAll('.bar a')].every((a) => a.getBoundingClientRect().right <= {width})")
    tab.resize(1280, 800)


def test_a_play_fits_a_phone(tab, address: str, imported: Path, demo: Path) -> None:
    tab.resize(400, 800)
    for run in (imported, demo):
        tab.open(f"{address}{telling_address(run)}")
        assert tab.run("document.querySelectorAll('article.action').length") > 2
        assert tab.run(MEASURE) == {"wide": 0, "small": [], "clipped": []}
    tab.resize(1280, 800)


def test_the_keys_lead_through_list_and_trajectory(tab, address: str) -> None:
    tab.open(f"{address}/runs/hostile/trajectories?agent=coder")
    for key in "jjjk":
        tab.press(key)
    rows = "[...document.querySelectorAll('tr[data-row]')]"
    assert tab.run(f"{rows}.indexOf(document.querySelector('.chosen'))") == 1
    second, third = tab.run(f"{rows}.slice(1, 3).map((row) => row.dataset.row)")
    tab.press("Enter")
    tab.until("location.pathname.endsWith('/trajectory') && document.readyState === 'complete'")
    assert tab.run("location.pathname + location.search") == second
    tab.press("j")
    tab.press("j")
    assert tab.run("document.querySelector('.chosen').id") == "a1"
    assert tab.run("location.hash") == "#a1", "the address leads back to the action"
    tab.press("x")
    assert tab.run("[...document.querySelectorAll('#a1 details')].every((one) => one.open)")
    tab.press("]")
    tab.until(f"location.pathname + location.search === {third!r} && document.readyState === 'complete'")
    tab.press("u")
    tab.until("location.pathname.endsWith('/trajectories') && document.readyState === 'complete'")
    assert tab.run("location.search") == "?agent=coder"
    tab.press("?")
    assert tab.run("document.getElementById('keys').open")
    tab.press("Escape")
    tab.until("!document.getElementById('keys').open")
    tab.press("/")
    assert tab.run("document.activeElement.name") == "words"


def test_an_action_has_an_address_its_text_is_copied_and_its_record_is_read(tab, address: str, root: Path) -> None:
    with RunReader(root / "hostile") as reader:
        one = next(reader.trajectory(row.id) for row in reader.trajectories if row.status == "done")
    tab.call("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    tab.call("Emulation.setFocusEmulationEnabled", enabled=True)
    tab.open(f"{address}/")
    tab.open(f"{address}/runs/hostile/trajectory?id={quote(one.id, safe='')}#a2")
    tab.until("document.querySelector('.chosen')?.id === 'a2'")
    tab.press("y")
    tab.until("document.querySelector('#a2 [data-copy]').textContent === 'copied'")
    assert tab.run("navigator.clipboard.readText()") == one.steps[2].completion.text, (
        "as it was written, character by character"
    )
    record = tab.run("fetch(document.querySelector('#a2 .tools a[title^=All]').href).then((one) => one.json())")
    assert (record["id"], record["completion"]["text"]) == (one.steps[2].id, one.steps[2].completion.text)
    assert len(record["messages"]) == len(one.steps[2].messages)
    whole = tab.run("fetch(document.querySelector('.head a[href*=json]').href).then((one) => one.json())")
    assert (whole["id"], len(whole["verdicts"])) == (one.id, len(one.verdicts))


def test_filters_change_the_list_in_place_and_reading_on_appends_to_it(tab, address: str, root: Path) -> None:
    with RunReader(root / "hostile") as reader:
        total = len(list(reader.trajectories))
    tab.open(f"{address}/runs/hostile/trajectories")
    count = "document.querySelectorAll('tr[data-row]').length"
    assert tab.run(count) == 50
    tab.run("window.scrollTo(0, document.body.scrollHeight)")
    assert total > 60
    tab.until(f"{count} === {total}")
    tab.run(
        "(() => { const chosen = document.querySelector('[name=failure]'); chosen.value = 'ToolError';"
        "chosen.dispatchEvent(new Event('change', {bubbles: true})) })()"
    )
    tab.until(f"{count} < 10 && location.search.includes('failure=ToolError')")
    assert tab.run("document.querySelector('[name=failure]').value") == "ToolError"


def test_a_trajectory_grows_under_the_reader_and_what_is_unfolded_stays_so(tab, address: str, root: Path) -> None:
    one = stores.trajectory(7, 0, 0)
    by_step = {verdict.step: verdict for verdict in one.verdicts}
    with RunFolder.create(root, "live", plugin="p", recipe="r", config="seed: 0\n") as folder:
        folder.store.begin_trajectory("train", one.id, one.task, 0, 0)
        for step in one.steps[:2]:
            folder.store.record_step(one.id, step)
        tab.open(f"{address}/runs/live/trajectory?id={quote(one.id, safe='')}")
        tab.run("document.getElementById('p1').open = true")
        tab.until("document.querySelectorAll('#p1 .message').length === 3")
        for step in one.steps[2:]:
            folder.store.record_step(one.id, step)
            folder.store.record_verdict(by_step[step.id])
        folder.store.end_trajectory(one)
        tab.until("document.querySelectorAll('article.action').length === 12")
        assert tab.run("document.getElementById('p1').open && !document.getElementById('p2').open")
        tab.until("document.querySelectorAll('#p1 .message').length === 3")
    assert tab.complaints == []
