"""Packages that know core by its front door alone: those that `mappa new` writes, and one of strangers. Each passes the
tests that it comes with, and is trained or used as people would."""

from __future__ import annotations

import ast
import asyncio
import json
import os
import re
import subprocess
import sys
import threading
import tomllib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree

import pytest

from mappa.cli import main
from mappa.cli.new import PACKAGE_KINDS
from mappa.runs import RunReader
from mappa.testing import WireServer, json_answer

PRESS = Path(__file__).parents[1] / "third_party" / "acme_press"
PAGE = Path(__file__).parents[2] / "docs/how-to/one-file.md"
ADDED = ("coach", "tool", "shaper")
"""Kinds of which one each is added to the package of a file."""
CLAUSES = {
    "file": 26, "added_coach": 15, "added_tool": 11, "added_shaper": 10,
    "workflow": 32, "coach": 15, "transport": 32, "tool": 11, "shaper": 10, "estimator": 11, "press": 70,
}  # fmt: skip
"""Tests that each package has at least: fewer, and contracts were left out unseen."""


@pytest.fixture(scope="module")
def packages(module_site, tmp_path_factory) -> Iterator[Path]:
    """A folder in which a package of every kind was written, all of them and the strangers' installed."""
    folder = tmp_path_factory.mktemp("packages")
    for kind in PACKAGE_KINDS:
        assert main(["new", kind, f"my-{kind}", "--in", str(folder)]) == 0
    text = PAGE.read_text("utf-8")
    (folder / "newsroom.py").write_text(re.search(r'```python title="team.py"\n(.*?)```', text, re.DOTALL)[1])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "path", [*sys.path])
        assert main(["new", "package", str(folder / "newsroom.py"), "--in", str(folder)]) == 0
    (folder / "newsroom.py").unlink()
    for kind in ADDED:
        assert main(["new", kind, f"added-{kind}", "--into", str(folder / "mappa-newsroom")]) == 0
    for project in (*sorted(folder.iterdir()), PRESS):
        module_site.install(project)
    yield folder


@pytest.fixture(scope="module")
def outcomes(packages, module_site) -> dict[str, Counter[str]]:
    """How the tests of every package ended, from one process over all of them."""
    report = packages / "report.xml"
    folders = [*packages.glob("mappa-*"), PRESS]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=short"]
    settings = ["--import-mode=importlib", "--rootdir", str(packages), "-o", "asyncio_mode=auto"]
    settings += ["-o", "asyncio_default_fixture_loop_scope=function", f"--junit-xml={report}"]
    # The largest teams of the estimator's proof take half of the time; `testing/test_prove_your_estimator.py` has them.
    settings += ["-k", "not (my_estimator and three)"]
    done = subprocess.run(
        [*command, *settings, *(str(one / "tests") for one in folders)],
        capture_output=True,
        text=True,
        cwd=packages,
        env={**os.environ, "PYTHONPATH": module_site.python_path},
    )
    found: dict[str, Counter[str]] = {}
    owners = {f"my_{kind}": kind for kind in PACKAGE_KINDS} | {"test_newsroom": "file"}
    owners |= {f"added_{kind}": f"added_{kind}" for kind in ADDED}
    for case in ElementTree.parse(report).iter("testcase"):
        owner = next((owner for name, owner in owners.items() if name in case.attrib["classname"]), "press")
        ending = next((part.tag for part in case if part.tag in ("failure", "error", "skipped")), "passed")
        found.setdefault(owner, Counter())[ending] += 1
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", CLAUSES)
def test_a_package_passes_its_tests_as_it_is_written(outcomes, name):
    assert set(outcomes[name]) == {"passed"}
    assert outcomes[name]["passed"] >= CLAUSES[name]


def test_what_is_written_is_tidy_and_complete(packages):
    def ruff(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "ruff", *arguments, "--no-cache", "."]
        return subprocess.run(command, capture_output=True, text=True, cwd=packages)

    checked = ruff("check", "--select", "E,W,F,I,B,UP,C4,SIM")
    assert checked.returncode == 0, checked.stdout
    # The file is its author's, as it was.
    assert ruff("format", "--check", "--exclude", "newsroom.py").returncode == 0
    for kind in PACKAGE_KINDS:
        names = {str(path.relative_to(packages / f"mappa-my-{kind}")) for path in packages.rglob("*") if path.is_file()
                 and f"mappa-my-{kind}" in path.parts}  # fmt: skip
        assert {"pyproject.toml", "README.md", ".gitignore", ".github/workflows/test.yml"} <= names
        assert {f"mappa_my_{kind}/__init__.py", f"mappa_my_{kind}/py.typed", f"tests/test_my_{kind}.py"} <= names


def test_everybody_imports_what_is_public(packages):
    """Strangers, and packages that `mappa new` writes: of core the front and families, of parts their fronts."""
    sources = [*packages.rglob("*.py"), *PRESS.parent.rglob("*.py")]
    assert len(sources) > 20
    modules = {name for path in sources for name in _imported(path) if name.startswith(("mappa.", "mappa_"))}
    core = ("coach", "data", "engine", "sandbox", "transport", "workflow")
    application = ("commands", "runs", "sessions", "statistics", "testing")
    public = {"mappa_core", "mappa_engine", "mappa_sandbox", *(f"mappa_core.{name}" for name in core)}
    public |= {f"mappa.{name}" for name in application}
    own = {*(f"mappa_my_{kind}" for kind in PACKAGE_KINDS), "mappa_newsroom"}
    deep = {name for name in modules - public if name.partition(".")[0] not in own}
    assert deep <= {"mappa.look.conformance", "mappa_engine.testing", "mappa_sandbox.testing"}


def test_a_new_team_trains(packages, tmp_path, capsys):
    words = ["train.iterations=2", "train.prompts=2", "train.samples=2", "eval.problems=4", f"run.root={tmp_path}"]
    assert main(["train", "--plugin", "my-workflow", "--name", "run", "--json", *words]) == 0
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert said["iterations"] == 2
    with RunReader(tmp_path / "run") as reader:
        (first, *_) = reader.trajectories.where(split="train")
        steps = reader.trajectory(first.id).steps
    assert [step.agent for step in steps] == ["picker", "checker"]


@pytest.mark.slow
def test_strangers_train_with_parts_of_their_own(packages, tmp_path, capsys, monkeypatch):
    """Own tasks, team, tool, provider as coach, shaper, estimator and tracker, in one run."""
    monkeypatch.setenv("ACME_PRESS_KEY", "planted")
    with judging() as server:
        words = [f"coach.options.address={server.url}", f"run.root={tmp_path}"]
        assert main(["train", "--plugin", "press", "--name", "run", "--json", *words]) == 0
    run = tmp_path / "run"
    with RunReader(run) as reader:
        played = [reader.trajectory(row.id) for row in reader.trajectories.where(split="train")]
        iterations = list(reader.iterations)
    steps = [step for trajectory in played for step in trajectory.steps]
    assert len(played) == 16 and len(iterations) == 2
    assert {request.headers["x-acme-key"] for request in server.requests} == {"planted"}
    assert {verdict.score for trajectory in played for verdict in trajectory.verdicts} == {6.0}
    looked_up = [result for step in steps for result in step.results if result.status == "ok"]
    assert looked_up and {result.tool for result in looked_up} == {"glossary"}
    assert {change.path for result in looked_up for change in result.files} == {"note.txt"}
    diary = [json.loads(line) for line in (run / "diary.jsonl").read_text().splitlines()]
    told = Counter(entry["what"] for entry in diary)
    assert (diary[0]["what"], diary[-1]["what"], diary[-1]["how"]) == ("start", "end", "done")
    assert told["action"] >= len(steps) and told["verdict"] == len(steps)
    assert [entry["iteration"] for entry in diary if entry["what"] == "figures"][-1] == 2
    capsys.readouterr()
    assert main(["press", "diary", str(run)]) == 0
    assert f"'verdict': {len(steps)}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        ("tool", "My Tool", "is no name for a package"),
        ("tool", "my_tool", "is no name for a package"),
        ("tool", "train", "`mappa train` is a command already"),
        ("tool", "any", "the class of 'any' would be Any"),
        ("coach", "true", "the class of 'true' would be True"),
        ("workflow", "task", "the class of 'task' would be Task"),
        ("shaper", "value-error", "the class of 'value-error' would be ValueError"),
        ("shaper", "scale", "there is a shaper 'scale' already"),
        ("workflow", "press", "a plugin 'press' is installed already"),
        ("transport", "ensemble", "there is a coach 'ensemble' already"),
    ],
)
def test_a_name_that_cannot_be_is_refused(packages, tmp_path, capsys, kind, name, message):
    assert main(["new", kind, name, "--in", str(tmp_path)]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_written_over(tmp_path, capsys):
    (tmp_path / "mappa-fresh").mkdir()
    assert main(["new", "tool", "fresh", "--in", str(tmp_path)]) == 2
    assert "is there already" in capsys.readouterr().err
    assert list((tmp_path / "mappa-fresh").iterdir()) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("tool", "more", "--into", "nowhere"), "--into names the folder of a package"),
        (("tool", "more", "--into", "bare"), "names no plugin in a package of this folder"),
        (("tool", "more", "--into", "inline"), "write the table [project.entry-points.mappa] on lines of its own"),
        (("tool", "more", "--into", "bare", "--in", "."), "leave out --in"),
        (("tool", "Big", "--into", "inline"), "is no name for a package"),
        (("package", "team.txt"), "a package is made of a file of Python"),
        (("package", "missing.py"), "there is no such file"),
        (("package", "mathchat.py"), "a plugin 'mathchat' is installed already"),
    ],
)
def test_what_cannot_be_added_or_packed_is_said_and_nothing_is_written(words, said, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, points in (("bare", ""), ("inline", 'entry-points = {mappa = {a = "mappa_a"}}\n')):
        (tmp_path / name / "mappa_a").mkdir(parents=True)
        (tmp_path / name / "mappa_a/__init__.py").touch()
        (tmp_path / name / "pyproject.toml").write_text(
            f'[project]\nname = "a"\nversion = "1"\ndependencies = []\n{points}'
        )
    before = sorted(tmp_path.rglob("*"))
    assert main(["new", *words]) == 2
    assert said in " ".join(capsys.readouterr().err.split())
    assert sorted(tmp_path.rglob("*")) == before


def test_what_an_added_offer_requires_is_required_once(tmp_path):
    assert main(["new", "coach", "first", "--in", str(tmp_path)]) == 0
    package = tmp_path / "mappa-first"
    assert main(["new", "estimator", "second", "--into", str(package)]) == 0
    assert main(["new", "transport", "third", "--into", str(package)]) == 0
    project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    assert [word.partition(">")[0] for word in project["dependencies"]] == ["mappa-core", "numpy", "aiohttp"]
    assert project["entry-points"]["mappa"] == {
        "first": "mappa_first", "second": "mappa_first.second", "third": "mappa_first.third"
    }  # fmt: skip
    assert "## second" in (package / "README.md").read_text()


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["new", "tool", "fresh", "--in", str(tmp_path / "file")]) == 2
    assert "Not a directory; choose another folder by --in" in " ".join(capsys.readouterr().err.split())


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


@contextmanager
def judging() -> Iterator[WireServer]:
    """The strangers' judge, in a thread of its own: everything is worth six points."""
    verdict = {"reasoning": "It will do.", "score": 6, "blame": None}
    ready, over = threading.Event(), threading.Event()
    server = WireServer(lambda request: json_answer({"words": json.dumps(verdict), "enough": True}))

    async def serve() -> None:
        async with server:
            ready.set()
            await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(30)
        yield server
    finally:
        over.set()
        thread.join()
