"""Keys planted wherever a subprocess, an SDK, a tool, a coach or an agent can print them: none is written anywhere."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import msgspec
import pytest
import structlog

from mappa.cli import main
from mappa.store.writer import Store
from mappa.testing import MemoryRecorder, play
from mappa.training.tracker_threads import TrackerThreads
from mappa_core import (
    Breach,
    Coach,
    CoachError,
    Failure,
    Inspection,
    Message,
    Role,
    Scene,
    Step,
    Task,
    ToolError,
    ToolResult,
    ToolSpec,
    TrackedRun,
    Tracker,
    Trajectory,
    Verdict,
    Workflow,
    WorkflowError,
    redaction,
)
from mappa_core.engine import EngineLost
from mappa_core.transport import CallError, Secret, decode_answer

KEY = "sk-planted/7f3a91+Zq=="
"""The one value that must not be found; it is read as PLANTED_API_KEY."""
FORMS = (KEY, quote(KEY, safe=""))


class Written(Tracker):
    """A tracker that notes all that it gets."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def start(self, run: TrackedRun) -> None: ...

    def log(self, iteration, metrics) -> None: ...

    def action(self, trajectory: str, step: Step, ended: float) -> None:
        self.texts.append(repr(step))

    def verdict(self, trajectory: str, verdict: Verdict, ended: float) -> None:
        self.texts.append(repr(verdict))

    def rollout(self, split, trajectory: Trajectory, ended: float) -> None:
        self.texts.append(repr(trajectory))

    def close(self, ending) -> None: ...


class Breaking(Written):
    """A tracker whose service quotes the key."""

    def action(self, trajectory, step, ended):
        headers = {"authorization": f"Bearer {KEY}"}
        raise ConnectionError(f"401 for {headers}")


class Team(Workflow):
    """One agent, one action; `leak` does what an environment's code can do wrong."""

    agents = {"solver": Role(brief="solves", produces=("plan.txt",))}  # noqa: RUF012

    def __init__(self, leak: Callable[[], str] = lambda: "") -> None:
        self._leak = leak

    async def run(self, stage):
        await stage.act("solver", [Message(role="user", content=f"? {self._leak()}")], tools=("echo",))
        stage.record(correct=1.0)

    async def inspect(self, scene, bench, *, last):
        found = self._leak()
        broken = Breach(kind="broken_output", agent="solver", path="plan.txt", detail=found)
        return Inspection(over=last, findings=(found,), facts={"found": found}, breaches=(broken,))

    def strata(self, scene):
        return {}


class Echo:
    """A tool that gives or raises what it is told to."""

    spec = ToolSpec(name="echo", description="echo", schema={"type": "object"})

    def __init__(self, give: Callable[[], ToolResult]) -> None:
        self._give = give

    async def call(self, arguments, workspace, limits):
        return self._give()

    async def close(self): ...


class Says(Coach):
    """A coach that gives or raises what it is told to."""

    def __init__(self, give: Callable[[], Verdict]) -> None:
        self._give = give

    async def score(self, scene: Scene) -> Verdict:
        return self._give()


def printed(**streams: str) -> Callable[[], ToolResult]:
    return lambda: ToolResult(tool="echo", status="ok", **streams)


def raises(error: BaseException) -> Callable[..., object]:
    def give(*_: object) -> object:
        environment = {"PLANTED_API_KEY": KEY}  # a local variable of a frame of every traceback
        raise error from ValueError(f"caused by {environment}")

    return give


def noted(error: Exception) -> Exception:
    error.add_note(f"asked with {KEY}")
    return error


def failing_subprocess() -> str:
    command = [sys.executable, "-c", "import os, sys; sys.exit(os.environ['PLANTED_API_KEY'])"]
    subprocess.run([*command, KEY], check=True, capture_output=True)
    return ""


def printing_subprocess() -> ToolResult:
    done = subprocess.run([sys.executable, "-c", "import os; print(os.environ)"], capture_output=True, text=True)
    return ToolResult(tool="echo", status="ok", stdout=done.stdout)


OK, CALL = ToolResult(tool="echo", status="ok", stdout="ok"), '<tool_call>{"name": "echo", "arguments": {}}</tool_call>'
SCORED = Verdict.scored(5, "so")
IN_A_PLAY: dict[str, dict[str, object]] = {
    "standard output of a tool": {"tool": printed(stdout=f"key: {KEY}")},
    "standard error of a tool": {"tool": printed(stderr=f"key: {KEY}")},
    "the environment, printed by a subprocess": {"tool": printing_subprocess},
    "percent-encoded in a URL": {"tool": printed(stdout=f"GET /?key={quote(KEY, safe='')}")},
    "twice on a line": {"tool": printed(stdout=f"{KEY}{KEY}")},
    "a long output": {"tool": printed(stdout="x" * 50_000 + KEY + "x" * 50_000)},
    "a tool that raises": {"tool": raises(RuntimeError(f"no {KEY}"))},
    "a tool whose machinery fails": {"tool": raises(ToolError(f"no {KEY}"))},
    "what an agent is shown": {"workflow": lambda: KEY},
    "a workflow that raises": {"workflow": raises(KeyError(KEY))},
    "a workflow that raises on purpose": {"workflow": raises(WorkflowError(f"no {KEY}"))},
    "a note of an error": {"workflow": raises(noted(RuntimeError("no")))},
    "a group of errors": {"workflow": raises(ExceptionGroup("several", [ValueError(KEY)]))},
    "a subprocess that fails": {"workflow": failing_subprocess},
    "what an agent says": {"text": f"I found {KEY}"},
    "the arguments of a call": {"text": f'<tool_call>{{"name": "echo", "arguments": {{"a": ["{KEY}"]}}}}</tool_call>'},
    "keys of the arguments of a call": {
        "text": f'<tool_call>{{"name": "echo", "arguments": {{"{KEY}": 1}}}}</tool_call>'
    },
    "the name of a call": {"text": f'<tool_call>{{"name": "{KEY}", "arguments": {{}}}}</tool_call>'},
    "a coach's reasoning": {"coach": lambda: Verdict.scored(5, f"because {KEY}")},
    "a coach's correction": {"coach": lambda: replace(SCORED, correction=f"use {KEY}")},
    "a coach's raw reply": {"coach": lambda: replace(SCORED, raw_reply=f'{{"authorization": "{KEY}"}}')},
    "a coach that raises": {"coach": raises(CoachError(f"no {KEY}"))},
    "a provider's error": {"coach": raises(CallError("key", f"401: {KEY}"))},
    "a bug of a coach": {"coach": raises(RuntimeError(f"no {KEY}"))},
    "a task": {"task": Task(id="t", prompt=f"? {KEY}", stratum="s", meta={"row": {"header": KEY}})},
    "a tracker that raises": {"tracker": Breaking()},
}


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The key is in the environment, and the log is that of the command line."""
    monkeypatch.setattr(redaction, "_masks", {})
    monkeypatch.setenv("PLANTED_API_KEY", KEY)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    main(["completion", "bash"])
    yield
    structlog.reset_defaults()


def written_by(folder: Path) -> str:
    return "".join(path.read_bytes().decode("latin-1") for path in sorted(folder.rglob("*")) if path.is_file())


def assert_nowhere(*texts: str) -> None:
    found = [text[max(0, at - 80) : at + 40] for text in texts for form in FORMS if (at := text.find(form)) >= 0]
    assert found == []


@pytest.mark.parametrize("place", IN_A_PLAY)
async def test_key_that_appears_in_a_rollout_is_not_written(planted, tmp_path, capfd, place):
    chosen = {"tool": printed(stdout="ok"), "workflow": lambda: "", "text": CALL, "coach": lambda: SCORED} | IN_A_PLAY[
        place
    ]
    tracker = chosen.get("tracker", Written())
    Store.create(tmp_path / "run.db")
    store, trackers = Store(tmp_path / "run.db"), TrackerThreads([("t", tracker)])
    trackers.start(TrackedRun(id="r", name="r", folder=tmp_path, plugin="p", recipe="r", seed=0, done=0, config={}))
    task = chosen.get("task", Task(id="t", prompt="?", stratum="s"))
    try:
        await play(
            Team(chosen["workflow"]),
            task,
            [chosen["text"]],
            tools={"echo": Echo(chosen["tool"])},
            coach=Says(chosen["coach"]),
            recorder=trackers.recorder(store),
        )
    except (RuntimeError, ExceptionGroup) as error:  # a bug ends the run, and the interpreter shows it
        sys.excepthook(type(error), error, error.__traceback__)
    troubles = trackers.close("done")
    for trouble in troubles:
        store.record_event("tracker", trouble=trouble)
    store.close()
    captured = capfd.readouterr()
    written = (written_by(tmp_path), captured.out, captured.err, *tracker.texts)
    assert_nowhere(*written)
    assert any("[PLANTED_API_KEY]" in text for text in written), "the key did not come this way"


class Answer(msgspec.Struct):
    """A provider's answer."""

    text: str


def decode_nonsense() -> None:
    decode_answer(Secret(KEY, "PLANTED_API_KEY").scrub(f'{{"no": "{KEY}"}}'), Answer)


LOGGED: dict[str, Callable[[], object]] = {
    "a value in the log": lambda: structlog.get_logger().warning("lost", error=f"no {KEY}"),
    "a list in the log": lambda: structlog.get_logger().warning("lost", errors=[KEY]),
    "an exception in the log": lambda: logged_exception(),
    "the traceback of a bug": lambda: hooked(lambda: raises(RuntimeError(KEY))()),
    "the traceback of a provider's nonsense": lambda: hooked(decode_nonsense),
    "the message of an error on the console": lambda: console_error(),
}


def logged_exception() -> None:
    try:
        raises(RuntimeError(KEY))()
    except RuntimeError:
        structlog.get_logger().exception("lost")


def hooked(act: Callable[[], object]) -> None:
    try:
        act()
    except Exception:  # noqa: BLE001 - what an interpreter does with an error that nobody catches
        sys.excepthook(*sys.exc_info())


def console_error() -> None:
    from mappa.cli.main import _print_error

    _print_error("Error", f"{KEY} is no such setting")


@pytest.mark.parametrize("place", LOGGED)
def test_a_key_in_a_log_or_a_traceback_is_not_shown(planted, capfd, place):
    LOGGED[place]()
    captured = capfd.readouterr()
    assert_nowhere(captured.out, captured.err)
    assert "[PLANTED_API_KEY]" in captured.err


def test_events_of_a_run_hold_no_key(planted, tmp_path):
    Store.create(tmp_path / "run.db")
    store = Store(tmp_path / "run.db")
    store.record_event("engine_lost", error=str(EngineLost(f"worker: {KEY}")), failure=Failure(kind="k", message=KEY))
    store.close()
    assert_nowhere(written_by(tmp_path))


@pytest.mark.parametrize("value", ["none", "EMPTY", "x", "1234567"])
def test_a_placeholder_masks_no_words(planted, value):
    redaction.keep_secret("LOCAL_API_KEY", value)
    assert redaction.redact(f"the answer is {value}") == f"the answer is {value}"


@pytest.mark.parametrize(
    ("name", "masked"),
    [("WANDB_API_KEY", True), ("HF_TOKEN", True), ("AWS_SECRET_ACCESS_KEY", True), ("my_secret", True),
     ("PGPASSWORD", False), ("KEYBOARD_LAYOUT", False), ("MAX_TOKENS", False), ("TOKENIZERS_PARALLELISM", False)],
)  # fmt: skip
def test_variables_whose_names_are_those_of_keys_are_masked(monkeypatch, name, masked):
    monkeypatch.setattr(redaction, "_masks", {})
    monkeypatch.setenv(name, "value-of-a-variable")
    redaction.keep_environment()
    assert (redaction.redact("value-of-a-variable") != "value-of-a-variable") is masked


async def test_a_failed_rollout_logs_a_short_traceback_without_locals(capfd):
    """As in a notebook, where nobody configured a log."""
    structlog.reset_defaults()
    recorder, data = MemoryRecorder(), ["a row of the data"] * 2_000

    def deep(levels: int) -> str:
        rows = list(data)
        return deep(levels - 1) if levels else str(1 / (len(rows) - len(data)))

    trajectory = await play(Team(lambda: deep(200)), Task(id="t", prompt="?", stratum="s"), [CALL], recorder=recorder)
    assert trajectory.error.kind == "WorkflowError:ZeroDivisionError"
    captured = capfd.readouterr()
    shown = captured.out + captured.err
    assert "workflow.raised" in shown and "ZeroDivisionError: division by zero" in shown
    assert "a row of the data" not in shown and len(shown.splitlines()) < 30


def test_the_log_of_a_command_is_configured_once(planted):
    before = len(structlog.get_config()["processors"])
    main(["completion", "bash"])
    assert len(structlog.get_config()["processors"]) == before
