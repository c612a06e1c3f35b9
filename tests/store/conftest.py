from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from mappa.look.demo import unpack_demo
from mappa.store.folder import RunFolder
from mappa_core import Completion, Message, Step, Task, ToolCall, ToolResult, Trajectory, Verdict
from mappa_core.engine import VersionSpan
from mappa_core.sandbox import FileChange

SYSTEM = "You are a careful solver of word problems. " * 10


@pytest.fixture
def task() -> Task:
    return Task(id="sum-7", prompt="What is 3 + 4? " * 30, reference="7", stratum="sum", meta={"difficulty": [1, None]})


@pytest.fixture
def make_step() -> Callable[..., Step]:
    def make(trajectory: str = "t0", position: int = 0, text: str = "I add them. ", **changes: object) -> Step:
        random = np.random.default_rng(position)
        completion = Completion(
            text=text * 40,
            prompt_tokens=random.integers(0, 9999, 600, dtype=np.int32),
            tokens=random.integers(0, 9999, 200, dtype=np.int32),
            logprobs=-random.random(200, dtype=np.float32),
            finish="stop",
            versions=(VersionSpan(version=3, start=0, end=200),),
            seconds=0.25,
        )
        fields = {
            "id": f"{trajectory}/{position}",
            "agent": ("solver", "executor", "verifier")[position % 3],
            "turn": position // 3,
            "position": position,
            "policy": "default",
            "messages": (Message(role="system", content=SYSTEM), Message(role="user", content=f"{trajectory} " * 100)),
            "reply": Message(role="assistant", content=text * 40, reasoning="think"),
            "completion": completion,
            "calls": (ToolCall(name="python", arguments={"code": "print(3 + 4)"}),),
            "results": (
                ToolResult(
                    tool="python",
                    status="ok",
                    exit_code=0,
                    stdout="7\n" * 200,
                    files=(FileChange(path="a.txt", kind="created", size=1, sha256="ab"),),
                ),
            ),
            "strata": {"task": "sum"},
        }
        return Step(**{**fields, **changes})  # type: ignore[arg-type]

    return make


@pytest.fixture
def make_verdict() -> Callable[..., Verdict]:
    def make(step: str = "t0/0", score: float = 7.5, **changes: object) -> Verdict:
        fields = {
            "status": "scored",
            "score": score,
            "reasoning": "right",
            "id": f"{step}/rules/live",
            "step": step,
            "coach": "rules",
        }
        return Verdict(**{**fields, **changes})  # type: ignore[arg-type]

    return make


@pytest.fixture
def finished(task: Task) -> Callable[..., Trajectory]:
    def make(identity: str = "t0", **changes: object) -> Trajectory:
        fields = {
            "id": identity,
            "task": task,
            "sample": 0,
            "iteration": 0,
            "outcome": {"correct": 1.0},
            "seconds": 1.5,
        }
        return Trajectory(**{**fields, **changes})  # type: ignore[arg-type]

    return make


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunFolder]:
    with RunFolder.create(tmp_path / "runs", "one", plugin="mathchat", recipe="tiny", config="seed: 0\n") as folder:
        yield folder


@pytest.fixture(scope="session")
def recorded_run() -> Callable[[Path], Path]:
    """Puts a run of several iterations into a folder."""
    return unpack_demo
