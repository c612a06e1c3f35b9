"""The list of runs as it stands on a terminal of 80 columns, and what became of runs that did not end themselves."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from mappa.cli import main
from mappa.runs import RunFolder
from mappa.store.folder import is_in_use, is_run_folder
from mappa.store.summary import EvalSummary, Summary, write_summary
from mappa.testing import play
from mappa_core import Message, Role, Task, ToolResult, ToolSpec, files
from mappa_core.coach import Interval

LONG = "dsbench-small-full-20261123-214803-a1b2"
EVAL = EvalSummary(
    metric="correct", n=256, before=Interval(mean=0.102, low=0.07, high=0.145),
    after=Interval(mean=0.773, low=0.718, high=0.82), gain=Interval(mean=0.672, low=0.61, high=0.734),
)  # fmt: skip


def make(root: Path, name: str, status: str | None, **more: object) -> Path:
    with RunFolder.create(root, name, plugin="p", recipe="r", config="seed: 0\n") as folder:
        pass
    if status is not None:
        summary = Summary(plugin="p", recipe="r", recipe_hash="h", seed=0, status=status, iterations=60, **more)
        write_summary(folder.path, summary)
    return folder.path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "runs"
    make(root, LONG, "done", eval=EVAL)
    make(root, "mathchat-tiny-20261123-214803-c3d4", "stopped")
    (make(root, "short", None) / "run.lock").unlink()
    return root


def listed(capsys, root: Path, *words: str) -> list[str]:
    assert main(["runs", "list", "--root", str(root), *words]) == 0
    return capsys.readouterr().out.splitlines()


def test_a_list_fits_80_columns_with_each_run_on_one_line(root, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    head, *lines = listed(capsys, root)
    assert len(lines) == 3 and max(map(len, (head, *lines))) <= 80
    first = re.match(r" (\S+) +done +60 +10\.2 % +77\.3 % +\+67\.2 % \[\+61\.0, \+73\.4\] *$", lines[0])
    start, end = first[1].split("…")
    assert LONG.startswith(start) and LONG.endswith(end) and min(len(start), len(end)) >= 8


def test_a_folder_without_runs_says_so(tmp_path, capsys):
    assert listed(capsys, tmp_path / "runs") == [f"no runs in {tmp_path / 'runs'}"]


@pytest.mark.parametrize("option", ["--limit", "--offset", "--iteration"])
def test_a_run_is_shown_from_a_place_in_it(option, tmp_path, capsys):
    assert main(["runs", "show", str(tmp_path), option, "-3"]) == 2
    assert f"Invalid value for '{option}'" in capsys.readouterr().err


def test_a_list_for_a_file_holds_whole_names_and_every_interval(root, capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    lines = listed(capsys, root)
    assert f" {LONG} " in lines[1] and "10.2 % [7.0, 14.5]" in lines[1]


def test_a_list_for_scripts_is_one_object_a_line(root, capsys):
    first, *_, last = map(json.loads, listed(capsys, root, "--json"))
    assert (first["run"], first["status"]) == (str(root / LONG), "done")
    assert first["summary"]["eval"]["gain"] == {"mean": 0.672, "low": 0.61, "high": 0.734}
    assert (last["status"], last["summary"]) == ("no summary", None)


def test_a_run_that_no_process_locks_was_killed(tmp_path, capsys, monkeypatch):
    """The lock tells at once; a process that was killed keeps its number until its parent has asked for its end."""
    monkeypatch.setenv("COLUMNS", "80")
    own = f"process {os.getpid()} on {socket.gethostname()}"
    for name, holder in (("lives", own), ("gone", own), ("elsewhere", "process 1 on another-machine")):
        folder = make(tmp_path, name, "running")
        (folder / "run.lock").write_text(holder)
    with RunFolder.open(tmp_path / "lives"):
        status = {line.split()[0]: line.split()[1] for line in listed(capsys, tmp_path)[1:]}
    assert status == {"lives": "running", "gone": "killed", "elsewhere": "running"}


def test_a_run_begins_although_a_reader_asks_at_that_moment_whether_it_is_in_use(tmp_path, monkeypatch):
    folder = make(tmp_path, "one", None)
    with (folder / "run.lock").open() as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)
        monkeypatch.setattr("mappa.store.folder.time.sleep", lambda seconds: fcntl.flock(reader, fcntl.LOCK_UN))
        with RunFolder.open(folder):
            assert is_in_use(folder)
    assert not is_in_use(folder)


def refused(folder, name, **more):
    if (folder.name, name) == ("locked", "summary.json"):
        raise PermissionError(errno.EACCES, "Permission denied", str(folder / name))
    return OPEN(folder, name, **more)


OPEN = files.open_regular


def test_a_run_that_may_not_be_read_stands_among_the_others(root, capsys, monkeypatch):
    make(root, "locked", "done")
    monkeypatch.setattr("mappa_core.files.open_regular", refused)
    monkeypatch.setenv("COLUMNS", "80")
    assert [line.split()[1] for line in listed(capsys, root)[1:]] == ["done", "stopped", "no", "unreadable"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes somebody else")
def test_a_folder_of_somebody_else_is_no_run_of_ones_own(root, capsys):
    folder = make(root, "locked", "done")
    folder.chmod(0o700)
    os.seteuid(65534)
    try:
        assert not is_run_folder(folder)
    finally:
        os.seteuid(0)


@pytest.mark.parametrize(
    "words", [["show", "--iteration", "99999999999999999999"], ["trace", "a\udcffb"], ["trace", "\ud800"]]
)
def test_a_value_that_no_database_holds_is_said(root, capsys, words):
    command, *rest = words
    assert main(["runs", command, str(root / LONG), *rest]) == 2
    assert "can hold no such value" in " ".join(capsys.readouterr().err.split())


def test_a_run_that_nobody_locked_is_not_in_use(tmp_path):
    folder = make(tmp_path, "one", None)
    (folder / "run.lock").write_text("")
    assert not is_in_use(folder) and not is_in_use(tmp_path)


class Prints:
    spec = ToolSpec(name="search", description="finds", schema={"type": "object"})

    async def call(self, arguments, workspace, limits):
        return ToolResult(tool="search", status="ok", stdout="nothing", limit="disk", watched=("wall", "disk"))

    async def close(self): ...


async def test_a_trace_shows_arguments_and_every_message_as_often_as_it_was_said(tmp_path, capsys):
    from mappa_core import Workflow

    class Team(Workflow):
        agents = {"a": Role(brief="a"), "b": Role(brief="b")}  # noqa: RUF012

        async def run(self, stage):
            rules, task = Message(role="system", content="the rules"), Message(role="user", content="the task")
            step = await stage.act("a", [rules, task], tools=("search",))
            again = Message(role="user", content="and now?")
            await stage.act("b", [rules, task, replace(step.reply, name="a"), again, again])
            stage.record(correct=0.0)

    call = '<tool_call>{"name": "search", "arguments": {"query": "high\\ntides", "top": 5}}</tool_call>'
    with RunFolder.create(tmp_path, "run", plugin="p", recipe="r", config="") as folder:
        task = Task(id="t", prompt="the task")
        await play(Team(), task, [call, "done"], tools={"search": Prints()}, recorder=folder.store)
    assert main(["runs", "trace", str(folder.path), "train-000000/t/000"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("the rules") == 1 and shown.count("and now?") == 2 and "saw, from a\n" not in shown
    assert "search: ok, stopped at its limit of disk (polled: wall, disk)\n" in shown
    assert """called search\n{"query":"high\\ntides","top":5}""" in shown
    assert main(["runs", "trace", str(folder.path), "train-000000/t/000", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"][0]["calls"][0]["arguments"]["query"] == "high\ntides"
    assert main(["runs", "show", str(folder.path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["trajectories"][0]["outcome"] == {"correct": 0.0}


async def test_what_is_not_shown_is_said_and_the_name_of_a_task_leads_to_its_plays(tmp_path, capsys):
    from mappa_core import Workflow

    class Team(Workflow):
        agents = {"a": Role(brief="a")}  # noqa: RUF012

        async def run(self, stage):
            stage.record(correct=1.0)

    with RunFolder.create(tmp_path, "run", plugin="p", recipe="r", config="") as folder:
        for number in range(3):
            await play(Team(), Task(id=f"trip-{number}", prompt="x"), [], recorder=folder.store)
    run = str(folder.path)
    assert main(["runs", "show", run, "--limit", "2"]) == 0
    assert "\n1 to 2 of 3, the newest first; --offset 2 shows older ones" in capsys.readouterr().out
    assert main(["runs", "show", run, "--offset", "2"]) == 0
    assert "\n3 to 3 of 3, the newest first\n" in capsys.readouterr().out
    assert main(["runs", "show", run]) == 0
    assert " of 3" not in capsys.readouterr().out
    assert main(["runs", "trace", run, "trip-1"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "trip-1 is a task, not a trajectory: name one in which it was played: train-000000/trip-1/000" in said
