"""The answers never come near an agent: in no file, message or tool result, and a program that looks for them finds
nothing."""

from __future__ import annotations

import json
import os
import secrets
import sys
from pathlib import Path

import pytest
from pandas import DataFrame

from mappa.testing import play
from mappa_core import Coach, ConfigError, Scene, Task, ToolLimits, Verdict
from mappa_core.codec import to_json
from mappa_core.sandbox import FolderWorkspace
from mappa_dsbench.grading.grade import compute_anchors
from mappa_dsbench.grading.truth import read_truth
from mappa_dsbench.options import TeamOptions
from mappa_dsbench.problem import Problem
from mappa_dsbench.table import Table, table_to_meta
from mappa_dsbench.workflow import DSBench
from mappa_sandbox.options import PythonOptions
from mappa_sandbox.tool import PythonTool

ROWS = 30
SEARCH = """```python
import itertools, json, os, sys
mark, place = MARK, PLACE
shown = os.path.realpath("test.csv")
guesses = [shown.replace("/tables/", "/answers/").replace("test.csv", "answers.csv"),
           os.path.join(os.path.dirname(shown), "..", "..", "answers", place, "answers.csv"),
           os.path.join(os.path.dirname(shown), "..", "..", "answers"), "/proc/self/cwd/../answers"]
found = []
for guess in guesses:
    try:
        found.append(os.listdir(guess) if os.path.isdir(guess) else open(guess).read()[:5])
    except OSError:
        pass
system = "/proc", "/sys", "/dev", "/usr", "/lib", "/lib64", "/bin", "/sbin", "/opt", sys.prefix, sys.base_prefix
system = {os.path.realpath(path) for path in system}
tops = "/", ".", os.path.dirname(shown)
for above, folders, files in itertools.chain.from_iterable(map(os.walk, tops)):
    folders[:] = [name for name in folders if os.path.realpath(os.path.join(above, name)) not in system]
    for name in (*folders, *files):
        if "answers" in name:
            found.append(name)
    for name in files:
        try:
            with open(os.path.join(above, name), "rb") as file:
                if mark.encode() in file.read(1 << 20):
                    found.append(name)
        except OSError:
            pass
for path in ("/proc/self/environ", "/proc/self/cmdline", "/proc/self/mountinfo", "/proc/1/environ", "/proc/1/cmdline"):
    try:
        if b"answers" in open(path, "rb").read():
            found.append(path)
    except OSError:
        pass
with open("found.json", "w") as file:
    json.dump(found, file)
print("found", found)
```"""
ENGINEER = """```python
import pandas as pd
train, test = pd.read_csv("train.csv"), pd.read_csv("test.csv")
train[["x"]].to_pickle("X_train.pkl")
train["y"].to_pickle("y_train.pkl")
test[["x"]].to_pickle("X_test.pkl")
```
DONE"""
MODELER = """```python
import pickle
import pandas as pd
from sklearn.linear_model import LinearRegression
model = LinearRegression().fit(pd.read_pickle("X_train.pkl"), pd.read_pickle("y_train.pkl"))
with open("model.pkl", "wb") as file:
    pickle.dump(model, file)
```
DONE"""
ANALYST = """```python
import pickle
import pandas as pd
with open("model.pkl", "rb") as file:
    model = pickle.load(file)
test = pd.read_csv("test.csv")
test[["id"]].assign(y=model.predict(pd.read_pickle("X_test.pkl"))).to_csv("submission.csv", index=False)
```
DONE"""


class Witness(Coach):
    """Keeps what coaches are shown of the truth."""

    def __init__(self) -> None:
        self.scenes: list[Scene] = []

    async def score(self, scene: Scene) -> Verdict:
        self.scenes.append(scene)
        return Verdict.scored(5, "seen")


@pytest.fixture
def mark() -> str:
    """Digits that stand in every answer, and that nothing else makes."""
    return f"{secrets.randbelow(10**9):09}"


@pytest.fixture
def task(tmp_path: Path, mark: str) -> Task:
    """A table whose answers can be told from everything else, in folders like those of the cache."""
    tables, answers = tmp_path / "tables" / "t-1", tmp_path / "answers" / "t-1"
    tables.mkdir(parents=True)
    answers.mkdir(parents=True)
    train = DataFrame({"id": range(ROWS), "x": range(ROWS), "y": [2.0 * row + 1 for row in range(ROWS)]})
    train.to_csv(tables / "train.csv", index=False)
    test = DataFrame({"id": range(100, 110), "x": range(10)})
    test.to_csv(tables / "test.csv", index=False)
    test[["id"]].assign(y=0).to_csv(tables / "sample_submission.csv", index=False)
    lines = [f"{100 + row},{2 * row + 1}.{mark}" for row in range(10)]
    (answers / "answers.csv").write_text("\n".join(["id,y", *lines]) + "\n")
    problem = Problem(name="t", kind="regression", metric="rmse", id_column="id", targets=("y",), range=(1.0, 59.0))
    anchors = compute_anchors(read_truth(answers / "answers.csv", problem), train[["y"]])
    table = Table(problem=problem, anchors=anchors, features=("x",), missing=False, categorical=False)
    names = ("train.csv", "test.csv", "sample_submission.csv")
    return Task(
        id="t",
        prompt="Predict y.",
        reference=str(answers / "answers.csv"),
        stratum="regression",
        files={name: str(tables / name) for name in names},
        meta=table_to_meta(table),
    )


async def opened(tier: str) -> PythonTool:
    tool = PythonTool(PythonOptions(sandbox=tier, preload=["pandas", "sklearn.linear_model"], workers=1))
    try:
        await tool.open()
    except ConfigError as error:
        await tool.close()
        required = os.environ.get("MAPPA_REQUIRE_TIERS", "bubblewrap" if os.environ.get("CI") else "")
        if sys.platform != "linux" or tier not in required.split(","):
            pytest.skip(f"the tier {tier} does not work here: {error}")
        raise
    return tool


@pytest.mark.parametrize("tier", ["bubblewrap", "landlock"])
async def test_truth_is_nowhere_that_an_agent_can_read(task: Task, mark: str, tier: str, tmp_path: Path) -> None:
    tool, witness, archive = await opened(tier), Witness(), tmp_path / "archive"
    search = SEARCH.replace("MARK", repr(mark)).replace("PLACE", repr(Path(task.reference).parent.name))
    try:
        played = await play(
            DSBench(TeamOptions(turns=2, prompts="tiny")),
            task,
            [search, ENGINEER, MODELER, ANALYST],
            tools={"python": tool},
            coach=witness,
            reference_for=["modeler", "analyst"],
            archive=archive / "played",
        )
        leaky = FolderWorkspace(tmp_path / "leaky", archive, {"leak.csv": Path(task.reference)})
        leak = await tool.run(search.strip("`").removeprefix("python"), [], leaky, ToolLimits())
    finally:
        await tool.close()
    assert "answers.csv" in leak.stdout or "leak.csv" in leak.stdout, "the search does not find what can be read"
    assert played.error is None
    assert played.outcome["success"] == 1, to_json(played)
    assert played.steps[0].results[0].stdout == "found []\n"
    # The program says the mark itself, as it is told what to look for; the rest of what was played does not.
    told = to_json([step.messages[0] for step in played.steps] + [step.results for step in played.steps]).decode()
    inspected = to_json([(step.inspection, step.breaches) for step in played.steps]).decode()
    for text in (told, inspected, json.dumps(dict(played.outcome))):
        assert mark not in text
        assert "answers" not in text
    kept = [path.read_bytes() for path in (archive / "played").rglob("*") if path.is_file()]
    assert len(kept) >= 6
    assert not [content for content in kept if mark.encode() in content or b"answers" in content]
    shown = [scene.truth for scene in witness.scenes if scene.truth is not None]
    assert len(shown) == 2
    assert not [text for text in shown if mark in text or "answers.csv" in text or str(tmp_path) in text]
