"""Steps and scenes of two teams: MathChat, which hands on words, and a data pipeline, which hands on files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from mappa.store import cassette
from mappa_core import Breach, Completion, Message, Role, Scene, Step, Task, ToolCall, ToolResult
from mappa_core.calls.spend_ledger import Ledger
from mappa_core.coach import Cassette
from mappa_core.config import rules
from mappa_core.config.layers import SettingsNode
from mappa_core.sandbox import FileChange

MATHS = {
    "problem_solver": Role(brief="Plans how to solve the problem."),
    "code_executor": Role(brief="Turns the plan into Python, which is run."),
    "verifier": Role(brief="Gives the final answer."),
}
PIPELINE = {
    "data_engineer": Role(brief="Prepares the data.", produces=("X_train.pkl", "X_test.pkl")),
    "modeler": Role(brief="Trains a model.", needs=("X_train.pkl",), produces=("model.pkl",)),
    "analyst": Role(brief="Predicts.", needs=("X_test.pkl", "model.pkl"), produces=("submission.csv",)),
}


def make_step(
    agent: str, reply: str, turn: int = 0, position: int = 0, *, shown: str = "Begin.", **fields: Any
) -> Step:
    """A step of which only what matters is given. `ran` are the results of its fenced blocks, with their code."""
    ran: dict[str, ToolResult] = fields.pop("ran", {})
    if ran:
        fields["tools"] = ("python",)
        fields["calls"] = tuple(ToolCall(name="python", arguments={"code": code}) for code in ran)
        fields["results"] = tuple(ran.values())
    reasoning, finish = fields.pop("reasoning", None), fields.pop("finish", "stop")
    return Step(
        **{
            "id": f"train-000000/task/000/{position:03d}",
            "agent": agent,
            "turn": turn,
            "position": position,
            "policy": agent,
            "messages": (Message(role="user", content=shown),),
            "reply": Message(role="assistant", content=reply, reasoning=reasoning),
            "completion": Completion(text=reply, prompt_tokens=None, tokens=None, logprobs=None, finish=finish),
            **fields,
        }
    )


@pytest.fixture
def open_cassette(tmp_path: Path) -> Callable[[str], AbstractContextManager[Cassette]]:
    """Opens the cassette of a test in a mode of `coach.cassette.mode`."""

    @contextmanager
    def opened(mode: str) -> Iterator[Cassette]:
        file = cassette.open_cassette(mode, tmp_path / "cassette.db")
        assert file is not None
        try:
            yield file
        finally:
            file.close()

    return opened


@pytest.fixture
def ledger() -> Callable[[float | None], Ledger]:
    """Makes a ledger with a cap in US dollars."""
    return Ledger


@pytest.fixture
def check_options() -> Callable[[Any], None]:
    """Checks options as those of a run's config are checked. Raises ConfigError."""
    return lambda options: rules.check_options(options, SettingsNode({}, "default"), "options")


@pytest.fixture
def act() -> Callable[..., Step]:
    return make_step


@pytest.fixture
def mathchat() -> Scene:
    """The Code Executor's second turn, after its first one failed."""
    problem = "Ana has 38 pens. Ana sells 9. How many pens?"
    bad, good = "print(38 -\n", "print(38 - 9)\n"
    error = "  File \"<python>\", line 1\n    print(38 -\n         ^\nSyntaxError: '(' was never closed\n"
    opening = f"You are the Code Executor.\n\n# Problem\n\n{problem}\n\n# From the Problem Solver\n\nstart 38\nsub 9"
    failed = make_step(
        "code_executor",
        f"```python\n{bad}```",
        position=1,
        shown=opening,
        ran={bad: ToolResult(tool="python", status="error", exit_code=1, stderr=error, seconds=0.07)},
    )
    again = make_step(
        "code_executor",
        f"The parenthesis was open.\n\n```python\n{good}```\n",
        turn=1,
        position=2,
        reasoning="Close it, then.",
        ran={good: ToolResult(tool="python", status="ok", exit_code=0, stdout="29\n", seconds=0.05)},
        messages=(
            failed.messages[0],
            failed.reply,
            Message(role="user", content=f"The program failed with exit code 1.\n{error}"),
        ),
    )
    return Scene(
        task=Task(id="pens-7", prompt=problem, stratum="sum", meta={"plan": "steps"}),
        role=MATHS["code_executor"],
        step=again,
        team=MATHS,
        earlier=(make_step("problem_solver", "start 38\nsub 9", shown=f"Plan: {problem}"), failed),
    )


@pytest.fixture
def pipeline() -> Callable[..., list[Scene]]:
    """The data engineer forgets X_test.pkl; the modeler does its part; the analyst loads in vain, and makes it up. As
    its scenes, live or, with an `outcome`, in hindsight; the truth is shown where there is a `reference`."""

    def scenes(reference: str | None = None, outcome: dict[str, float] | None = None) -> list[Scene]:
        task = Task(id="titanic", prompt="Predict who survived.", reference=reference, files={"train.csv": "/d/t.csv"})
        steps = _pipeline_steps()
        return [
            Scene(
                task=task,
                role=PIPELINE[step.agent],
                step=step,
                team=PIPELINE,
                earlier=steps[:place],
                later=None if outcome is None else steps[place + 1 :],
                outcome=outcome,
            )
            for place, step in enumerate(steps)
        ]

    return scenes


def _pipeline_steps() -> tuple[Step, ...]:
    split, train = "X.to_pickle('X_train.pkl')\n", "dump(model, 'model.pkl')\n"
    predict, made_up = "X = read_pickle('X_test.pkl')\n", "sub.to_csv('submission.csv')\n"
    lost = "Traceback (most recent call last):\n  …\nFileNotFoundError: [Errno 2] No such file: 'X_test.pkl'\n"
    engineer = make_step(
        "data_engineer",
        f"I save both parts.\n\n```python\n{split}```",
        files=("train.csv",),
        ran={
            split: ToolResult(
                tool="python",
                status="ok",
                exit_code=0,
                stdout="X_train.pkl and X_test.pkl saved\n",
                files=(
                    FileChange(path="X_train.pkl", kind="created", size=5120, sha256="a" * 64),
                    FileChange(path="train.csv", kind="created", size=900, sha256="b" * 64),
                ),
            )
        },
        breaches=(Breach(agent="data_engineer", kind="missing_output", path="X_test.pkl"),),
    )
    modeler = make_step(
        "modeler",
        f"```python\n{train}```",
        position=1,
        files=("X_train.pkl", "train.csv"),
        ran={
            train: ToolResult(
                tool="python",
                status="ok",
                exit_code=0,
                files=(
                    FileChange(path="X_train.pkl", kind="changed", size=5000, sha256="c" * 64),
                    FileChange(path="model.pkl", kind="created", size=7000, sha256="d" * 64),
                ),
            )
        },
    )
    analyst = make_step(
        "analyst",
        f"```python\n{predict}```\n\n```python\n{made_up}```",
        position=2,
        files=("X_train.pkl", "model.pkl", "train.csv"),
        ran={
            predict: ToolResult(tool="python", status="error", exit_code=1, stderr=lost),
            made_up: ToolResult(
                tool="python",
                status="ok",
                exit_code=0,
                files=(FileChange(path="submission.csv", kind="created", size=40, sha256="e" * 64),),
            ),
        },
        breaches=(Breach(agent="analyst", kind="missing_input", path="X_test.pkl"),),
    )
    return engineer, modeler, analyst
