"""What a package or script of others is told by a type checker about the functions that it calls."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

USER = """
import mappa
from mappa_core import Role, Scene, Stage, Task, Workflow


class Team(Workflow):
    agents = {"writer": Role(brief="writes")}

    async def run(self, stage: Stage) -> None: ...


@mappa.coach
def points(scene: Scene) -> float:
    return 1.0


tasks = [Task(id="1", prompt="?")]
run = mappa.train(workflow=Team, tasks=tasks, coach={"use": points}, seed=1, train={"iterations": 1})
reveal_type(run)
reveal_type(run.gain)
reveal_type(run.blame)
reveal_type(run.plot().save("run.svg"))
for report in run.iterations:
    reveal_type(report.agents["writer"].score)
reveal_type(mappa.judge(run, coach=points).counts.scored)
reveal_type(mappa.compare(run, "runs/other").pairs[0].finding)
"""
REVEALED = [
    "mappa.notebook.trained_run.TrainedRun",
    "mappa_core.records.Interval | None",
    "typing.Mapping[str, int]",
    "pathlib.Path",
    "float | None",
    "int",
    "'better' | 'worse' | 'no significant difference' | 'cannot be told'",
]
WRONG = """
import mappa

mappa.train(workflow=3)
mappa.train("mathchat/tiny", trian={"iterations": 1})
mappa.train("mathchat/tiny", seed="1")
mappa.judge("runs/mine")
"""


@pytest.mark.slow
def test_types_are_complete_for_who_calls_from_outside(tmp_path):
    (tmp_path / "user.py").write_text(USER)
    (tmp_path / "wrong.py").write_text(WRONG)
    # Only installed packages are found from there, by their py.typed.
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--cache-dir", os.devnull]
    done = subprocess.run([*command, "user.py", "wrong.py"], cwd=tmp_path, capture_output=True, text=True, timeout=240)
    lines = done.stdout.splitlines()
    told = [line for line in lines if line.startswith("user.py")]
    revealed = [re.search(r'Revealed type is "(.*)"', line) for line in told]
    assert all(revealed), done.stdout + done.stderr
    shown = [re.sub(r"Literal\[(.*?)\]", r"\1", found[1]).replace("builtins.", "") for found in revealed if found]
    assert shown == REVEALED
    assert [line.split(":")[1] for line in lines if "wrong.py" in line and "error" in line] == ["4", "5", "6", "7"]
