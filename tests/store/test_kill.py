"""What is left when a writing process is killed or the disk is full: the border of the operating system is real."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mappa.runs import RunReader
from mappa.store.folder import RunFolder
from mappa_core import Task

WRITE = """
import sys
from pathlib import Path
import numpy as np
from mappa_core.errors import RunError
from mappa_core.records import Completion, Message, Step, Task, Verdict
from mappa.store.folder import RunFolder

path, scratch, limit = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
if limit:
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
folder = RunFolder.open(path, scratch=Path(scratch) if scratch else None)
folder.store.begin_trajectory("train", "t0", Task(id="a", prompt="?"), 0, 0)
for number in range(100_000):
    tokens = np.arange(number, number + 500, dtype=np.int32)
    completion = Completion(
        text=f"{number} " * 200, prompt_tokens=tokens, tokens=tokens, logprobs=tokens.astype(np.float32), finish="stop"
    )
    message = Message(role="user", content=f"prompt {number} " * 50)
    step = Step(
        id=f"t0/{number}", agent="solver", turn=number, position=number, policy="solver", messages=(message,),
        reply=Message(role="assistant", content=completion.text), completion=completion,
    )
    try:
        folder.store.record_step("t0", step)
        folder.store.record_verdict(Verdict(status="scored", score=5.0, id=f"v{number}", step=step.id, coach="rules"))
    except RunError as error:
        print(f"stopped: {error}", flush=True)
        sys.exit(2)
    print(number, flush=True)
"""


def writer(path: Path, scratch: str = "", limit: int = 0) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITE, str(path), scratch, str(limit)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with RunFolder.create(tmp_path, "mine", plugin="mathchat", recipe="tiny", config="") as folder:
        return folder.path


@pytest.mark.parametrize("scratch", [False, True])
def test_a_kill_loses_no_step_or_verdict_that_was_acknowledged(path: Path, tmp_path: Path, scratch: bool) -> None:
    near = tmp_path / "scratch" if scratch else None
    with writer(path, str(near or "")) as process:
        assert process.stdout is not None
        acknowledged = [int(process.stdout.readline()) for _ in range(200)]
        process.kill()
        acknowledged += [int(line) for line in process.stdout if line.endswith("\n")]
    assert process.returncode == -signal.SIGKILL
    with RunFolder.open(path, scratch=near) as folder:
        begun = folder.store.load_recorded("train", 0)["t0"]
        assert folder.store._database.rows("PRAGMA integrity_check") == [("ok",)]
    recorded = begun.trajectory
    assert [step.position for step in recorded.steps][: len(acknowledged)] == acknowledged
    assert [verdict.id for verdict in recorded.verdicts][: len(acknowledged)] == [f"v{n}" for n in acknowledged]
    assert not begun.finished


def test_a_full_disk_stops_the_run_with_a_message_and_keeps_what_was_written(path: Path) -> None:
    with writer(path, limit=1_000_000) as process:
        assert process.stdout is not None
        *acknowledged, message = process.stdout
    assert process.returncode == 2
    assert message.startswith("stopped: ")
    assert "run.db" in message
    with RunFolder.open(path) as folder:
        assert folder.store._database.rows("PRAGMA integrity_check") == [("ok",)]
        recorded = folder.store.load_recorded("train", 0)["t0"].trajectory
    assert len(recorded.verdicts) >= len(acknowledged) > 10
    assert len(recorded.steps) - len(recorded.verdicts) in (0, 1)


def test_a_folder_cannot_be_made_on_a_full_disk_and_nothing_is_left(tmp_path: Path) -> None:
    code = (
        "import resource, sys; from pathlib import Path\n"
        "from mappa_core.errors import RunError; from mappa.store.folder import RunFolder\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n"
        "try: RunFolder.create(Path(sys.argv[1]), 'mine', plugin='mathchat', recipe='tiny', config='')\n"
        "except RunError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert "run.db" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_reader_follows_another_process(path: Path) -> None:
    with writer(path) as process:
        assert process.stdout is not None
        seen = []
        for _ in range(30):
            number = int(process.stdout.readline())
            with RunReader(path) as reader:
                (row,) = reader.trajectories
                seen.append(row.steps > number)
        process.kill()
    assert all(seen)


def test_what_was_recorded_before_a_kill_can_be_written_again(path: Path) -> None:
    with writer(path) as process:
        assert process.stdout is not None
        for _ in range(20):
            process.stdout.readline()
        process.kill()
    with RunFolder.open(path) as folder:
        before = folder.store.load_recorded("train", 0)["t0"].trajectory
        folder.store.begin_trajectory("train", "t0", Task(id="a", prompt="?"), 0, 0)
        for step in before.steps:
            folder.store.record_step("t0", step)
        for verdict in before.verdicts:
            folder.store.record_verdict(verdict)
        after = folder.store.load_recorded("train", 0)["t0"].trajectory
    assert [step.id for step in after.steps] == [step.id for step in before.steps]
    assert after.verdicts == before.verdicts
