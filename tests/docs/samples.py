"""Samples of the pages, and a person who types them: what is shown is done in a folder of its own, in the order of the
page.

The language of a block says how it is done: `bash` is typed line by line, `python` is executed, `yaml` is laid over a
recipe, `toml` and `json` are parsed, and what has a title is a file that is written. All others are only shown.
Comments above a block say what a reader need not see:

    <!-- needs: WHAT -->      what is not here: nothing is run, but all options and settings are held against the code
    <!-- tested: PATH -->     a test of its own does this
    <!-- recipe: NAME -->     what a yaml block is laid over, in place of mathchat/tiny
    <!-- uses: runs/NAME -->  a run that is there before the block is done
    <!-- continues: WHAT -->  Python that uses what the block of Python before it made
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.request import HTTPCookieProcessor, build_opener

import click

from mappa.cli import main
from mappa.runs import RunReader
from mappa.sessions import ComposedConfig, compose
from mappa.testing import load_plugins

ROOT = Path(__file__).parents[2]
MARKS = {"needs", "tested", "recipe", "uses", "continues"}
SHORT = ("train.iterations=1", "train.prompts=1", "train.samples=2", "eval.problems=1", "checkpoint.every=1")
"""What makes a run as short as can be."""
PLAYS = {"train", "warm-start", "eval", "observe", "gateway"}
OWN = {
    tomllib.loads(path.read_text())["project"]["name"]: tomllib.loads(path.read_text())["project"]
    for path in (ROOT / "pyproject.toml", ROOT / "mappa/pyproject.toml", *ROOT.glob("plugins/*/pyproject.toml"))
}
_FENCE = re.compile(
    r"(?P<marks>(?:^<!-- \w+: .*? -->\n)*)^(?P<indent> *)(?P<fence>```+)(?P<info>[^\n`]*)\n"
    r"(?P<text>.*?)^(?P=indent)(?P=fence)$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A sample of a page."""

    page: Path
    line: int
    language: str
    title: str | None
    text: str
    marks: Mapping[str, str]

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def commands(self) -> list[str]:
        """The lines of a shell block, those that a backslash joins as one."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [line for line in lines if shlex.split(line, comments=True)]


def blocks_of(page: Path) -> Iterator[Block]:
    """All samples of a page, in order."""
    text = page.read_text("utf-8")
    for found in _FENCE.finditer(text):
        language, _, rest = found["info"].strip().partition(" ")
        title = re.search(r'title="([^"]*)"', rest)
        marks = dict(re.findall(r"<!-- (\w+): (.*?) -->", found["marks"]))
        assert marks.keys() <= MARKS, f"{page}: there is no mark {', '.join(marks.keys() - MARKS)}"
        yield Block(
            page=page,
            line=text.count("\n", 0, found.start("fence")) + 1,
            language=language,
            title=title[1] if title else None,
            text=textwrap.dedent(found["text"]),
            marks=marks,
        )


def pages() -> list[Path]:
    """Every page that shows samples, the design and what is made from the code included."""
    found = [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "mappa/README.md",
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("plugins/*/README.md"),
    ]
    return sorted(page for page in found if any(True for _ in blocks_of(page)))


class Reading:
    """Somebody who reads pages in a folder of their own, which is the working directory, and does what they say."""

    def __init__(self, place: Callable[[Path], None], install: Callable[[Path], None], path: Callable[[], str]) -> None:
        """`place` puts a run there; `install` makes a project importable, and `path` says by which Python path."""
        self._place, self._install, self._path = place, install, path
        self._names: dict[str, object] = {}

    def do(self, block: Block) -> None:
        """Do what a block shows. Raises AssertionError where it does not work."""
        if "tested" in block.marks:
            test = ROOT / block.marks["tested"]
            assert test.is_file(), f"{block.where}: there is no {test}"
            return
        if "uses" in block.marks:
            self._place(Path(block.marks["uses"]))
        if block.title is not None:
            Path(block.title).parent.mkdir(parents=True, exist_ok=True)
            Path(block.title).write_text(block.text, encoding="utf-8")
        elif block.language == "bash":
            for line in block.commands:
                self._type(shlex.split(line, comments=True), f"{block.where}: {line}", "needs" not in block.marks)
        elif block.language == "yaml":
            lay(block)
        elif block.language == "python" and "needs" in block.marks:
            compile(block.text, block.where, "exec")
        elif block.language == "python":
            if "continues" not in block.marks:
                self._names = {"__name__": "sample"}
            exec(compile(block.text, block.where, "exec"), self._names)
        else:
            {"toml": tomllib.loads, "json": json.loads}.get(block.language, str)(block.text)

    def _type(self, words: Sequence[str], said: str, runs: bool) -> None:
        first, *rest = words
        if first == "mappa":
            self._mappa(rest, said, runs)
        elif first == "pip":
            self._pip(rest, said, runs)
        elif first == "make":
            check_target(rest, said)
        elif first.endswith("python") and rest[0].endswith(".py"):
            check_script(rest, said)
        elif first == "cd" and runs:
            os.chdir(rest[0])
        elif first == "rm" and runs:
            for name in rest:
                Path(name).unlink()
        elif first == "export" and "=" in rest[0]:
            pass
        elif first == "pytest" and runs:
            self._pytest(rest, said)
        elif words in (["python3", "-m", "venv", ".venv"], ["source", ".venv/bin/activate"]):
            pass  # The environment of these tests stands in for it.
        else:
            assert not runs, f"{said}: say what it needs, or teach tests/docs/samples.py to type it"

    def _mappa(self, words: list[str], said: str, runs: bool) -> None:
        for word in words:
            path = word.partition("=")[2] or word
            if re.fullmatch(r"runs/[\w-]+(@\w+)?", path):
                self._place(Path(path.partition("@")[0]))
        words = [word for word in words if runs or word != "…"]
        command, given = parsed(words, said, runs)
        if not runs:
            if "asked" not in given and command in ("train", "plan", "config", "gateway", "sweep"):
                composed_of(given, said)
            return
        if command == "view":
            serve(words, said)
            return
        if "ID" in words:
            with RunReader(Path(next(word for word in words if word.startswith("runs/")))) as reader:
                words = [next(iter(reader.trajectories)).id if word == "ID" else word for word in words]
        looks = command == "observe" and any("=" not in word for word in given["settings"])
        fresh = command in PLAYS and not looks and not given.get("resume")
        assert main([*words, *(SHORT if fresh else ())]) == 0, f"{said}: it fails"

    def _pip(self, words: Sequence[str], said: str, runs: bool) -> None:
        assert words[0] == "install", said
        for word in words[1:]:
            name, _, extras = word.removesuffix("]").partition("[")
            if word == "--editable":
                continue
            if name.startswith("."):
                self._install(Path(name).resolve())
                continue
            assert name in OWN or not runs, f"{said}: {name} is none of the project's packages"
            if name not in OWN:
                continue
            unknown = {*filter(None, extras.split(","))} - OWN[name].get("optional-dependencies", {}).keys()
            assert not unknown, f"{said}: {name} has no extra {unknown}"

    def _pytest(self, words: Sequence[str], said: str) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *words],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": self._path()},
        )
        assert done.returncode == 0, f"{said}:\n{done.stdout[-4000:]}"


def parsed(words: Sequence[str], said: str, runs: bool) -> tuple[str, Mapping[str, object]]:
    """The command that is typed, and what it is given. Fails where there is no such command or option; where nothing is
    run, files need not be there."""
    from importlib import import_module

    front = import_module("mappa.cli.main").cli
    context = click.Context(front, info_name="mappa", **front.context_settings)
    command, rest, names = front, list(words), []
    try:
        while isinstance(command, click.Group):
            with context:
                name, command, rest = command.resolve_command(context, rest)
            names.append(str(name))
            context = click.Context(command, parent=context, info_name=name)
        inner = command.make_context(context.info_name, rest, parent=context.parent)
    except click.BadParameter as error:
        assert not runs and "does not exist" in error.message, f"{said}: {error.format_message()}"
        return " ".join(names), {}
    except click.UsageError as error:
        raise AssertionError(f"{said}: {error.format_message()}") from error
    return " ".join(names), inner.params


def composed_of(given: Mapping[str, object], said: str) -> ComposedConfig:
    """The config that is asked for; what is not installed here may be named."""
    files = [path for path in given.get("config_files", ()) if Path(path).is_file()]
    try:
        return compose(load_plugins(), given.get("plugin"), given.get("recipe"), files, given.get("settings", ()))
    except ValueError as error:
        raise AssertionError(f"{said}: {error}") from error


def lay(block: Block) -> ComposedConfig:
    """Lay settings over the recipe that they are shown for."""
    path = Path("settings-of-a-page.yaml")
    path.write_text(block.text, encoding="utf-8")
    recipe = block.marks.get("recipe", "mathchat/tiny")
    try:
        composed = compose(load_plugins(), recipe=recipe, config_files=[path])
        if "needs" not in block.marks:
            composed.require_installed()
    except ValueError as error:
        raise AssertionError(f"{block.where}: {error}") from error
    path.unlink()
    return composed


def serve(words: Sequence[str], said: str) -> None:
    """Start what serves pages, fetch the one whose address it says, and end it as Ctrl-C does."""
    command = [sys.executable, "-m", "mappa", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        try:
            told = server.stdout.readline()
            address = re.search(r"http://127\.0\.0\.1:\S+", told)
            assert address, f"{said}: it says no address: {told}"
            # The token in the address becomes a cookie.
            browser = build_opener(HTTPCookieProcessor())
            with browser.open(address[0], timeout=60) as page:
                assert page.status == 200, said
        finally:
            server.send_signal(signal.SIGINT)


def check_target(words: Sequence[str], said: str) -> None:
    """`make TARGET NAME=value`: there are such a target and such variables."""
    makefile = (ROOT / "Makefile").read_text()
    targets = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)[1].split()
    for word in words:
        name, equals, _ = word.partition("=")
        known = re.search(rf"^{name} \?=", makefile, re.MULTILINE) if equals else name in targets
        assert known, f"{said}: the Makefile knows no {name}"


def check_script(words: Sequence[str], said: str) -> None:
    """`python SCRIPT --option`: the script is there and knows the option."""
    source = ROOT / words[0]
    assert source.is_file(), f"{said}: there is no such file"
    text = source.read_text() + "".join(path.read_text() for path in source.parent.glob("*.py"))
    for word in words[1:]:
        if word.startswith("--"):
            assert f'"{word}"' in text, f"{said}: {words[0]} has no option {word}"


def copy_of(run: Path) -> Callable[[Path], None]:
    """What puts a copy of `run` where a page has one."""

    def place(path: Path) -> None:
        if not path.exists():
            shutil.copytree(run, path)

    return place
