"""What all tests need: settings of hypothesis, plugins that are found through the metadata of distributions, and an
event loop whose clock jumps."""

from __future__ import annotations

import asyncio
import os
import re
import selectors
import signal
import sys
import tomllib
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("mappa", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("mappa")

# What commands print is as in a file, whatever the width of the terminal that tests are started from.
os.environ.pop("COLUMNS", None)

# A script that runs tests in its background leaves SIGINT ignored, which programs that tests start would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)

THIRD_PARTY = Path(__file__).parent / "tests/third_party"
collect_ignore = ["tests/third_party"]
"""Their tests are run as theirs, in `tests/downstream`."""


class Site:
    """A folder of distributions on the path, as pip would leave them."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._projects: list[Path] = []
        self._monkeypatch = monkeypatch
        monkeypatch.syspath_prepend(folder)

    @property
    def python_path(self) -> str:
        """The same path for a process of its own."""
        return ":".join(map(str, (self.folder, *self._projects)))

    def install(self, name: str | Path) -> None:
        """Install the project `tests/third_party/NAME`, or the one in a folder elsewhere, editable."""
        folder = THIRD_PARTY / name
        project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        self._projects.insert(0, folder)
        self._monkeypatch.syspath_prepend(folder)
        self._describe(project["name"], project["version"], project["description"], project["entry-points"])

    def write(self, plugin: str, source: str, package: str | None = None) -> None:
        """Install a plugin of one module, made of its source."""
        module = f"written_{(package or plugin).replace('-', '_')}"
        (self.folder / f"{module}.py").write_text("from mappa_core import Offer, hookimpl\n" + source)
        points = {"mappa": {plugin: module}}
        self._describe(package or f"written-{plugin}", "1.0", "Written by a test.", points)

    def _describe(self, package: str, version: str, summary: str, points: Mapping[str, Mapping[str, str]]) -> None:
        info = self.folder / f"{package.replace('-', '_')}-{version}.dist-info"
        info.mkdir(exist_ok=True)  # a second time, as with other entry points
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\nSummary: {summary}\n"
            "Requires-Dist: mappa-core\n"
        )
        lines = [f"{name} = {place}" for name, place in points["mappa"].items()]
        commands = [f"{name} = {place}" for name, place in points.get("mappa.commands", {}).items()]
        (info / "entry_points.txt").write_text("\n".join(["[mappa]", *lines, "[mappa.commands]", *commands, ""]))
        self._monkeypatch.syspath_prepend(str(self.folder))


@contextmanager
def open_site(folder: Path) -> Iterator[Site]:
    """An empty site; the modules it brought are forgotten afterwards."""
    before = set(sys.modules)
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield Site(folder, monkeypatch)
    for name in set(sys.modules) - before:
        if name.startswith(("written_", "acme_")):
            del sys.modules[name]


@pytest.fixture
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with open_site(tmp_path_factory.mktemp("site")) as one:
        yield one


@pytest.fixture(scope="module")
def module_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A site for all tests of one module."""
    with open_site(tmp_path_factory.mktemp("site")) as one:
        yield one


@pytest.fixture
def acme(site: Site) -> Site:
    """A site where the strangers' plugin is installed."""
    site.install("acme")
    return site


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], Path]:
    """Write a text file in the test's folder."""

    def write_text(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write_text


@pytest.fixture(scope="session")
def metric_names() -> list[str]:
    """The names of metrics that docs/metrics.md lists; words in capitals stand for names of a run's own."""
    page = (Path(__file__).parent / "docs/metrics.md").read_text(encoding="utf-8")
    return re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)


@pytest.fixture(scope="session")
def documented_metric(metric_names: list[str]) -> Callable[[str], str | None]:
    """Finds a run's metric on the page; of several that match, the most specific one."""
    patterns = {name: re.compile(re.sub("[A-Z]+", "(.+)", name), re.DOTALL) for name in metric_names}

    def find(name: str) -> str | None:
        matches = [listed for listed, pattern in patterns.items() if pattern.fullmatch(name)]
        return max(matches, key=lambda listed: len(re.sub("[A-Z]+", "", listed)), default=None)

    return find


class JumpingSelector(selectors.SelectSelector):
    """Does not wait: notes how long it would have, which is what has passed on the clock. A nanosecond always passes:
    on a clock that stands still, whoever waits for the rest of a rounding error waits forever."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        events = super().select(0)
        if not events:
            if timeout is None:
                raise RuntimeError("everyone waits for something that never happens")
            self.now += max(timeout, 1e-9)
        return events


class JumpingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def run_on_jumping_clock(main: Coroutine[Any, Any, Any]) -> Any:
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(main)


@pytest.fixture(scope="session")
def travel() -> Callable[[Coroutine[Any, Any, Any]], Any]:
    """Run a coroutine on a clock that begins at 0 and jumps to whatever happens next."""
    return run_on_jumping_clock
