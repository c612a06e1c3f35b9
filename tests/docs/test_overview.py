"""What the one page on Mappa shows is run."""

import re
import shlex
import types
from pathlib import Path

import pytest

from mappa.cli import main
from mappa.runs import RunReader
from mappa.testing import load_plugins, play
from mappa_core import Message, Role, Task, ToolResult, Workflow

PAGE = (Path(__file__).parents[2] / "docs" / "overview.md").read_text()
SHORT = ("train.iterations=1", "train.prompts=2", "eval.problems=2")
SAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


class One(Workflow):
    agents = {"coder": Role(brief="codes")}  # noqa: RUF012

    async def run(self, stage):
        await stage.act("coder", [Message(role="user", content="?")], tools=("python",))


class Python:
    from mappa_core import ToolSpec

    spec = ToolSpec(name="python", description="", schema={})

    async def call(self, arguments, workspace, limits):
        failed = "raise" in arguments["code"]
        return ToolResult(tool="python", status="error" if failed else "ok", stderr="ValueError: no" if failed else "")

    async def close(self):
        pass


async def test_the_coach_of_the_page_is_a_plugin_that_works():
    module = types.ModuleType("receipts")
    exec(SAMPLES[0], module.__dict__)
    coach = load_plugins(only=(), modules={"receipts": module}).build("coaches", "receipts")

    async def judged(reply):
        trajectory = await play(One(), Task(id="1", prompt="?"), [reply], tools={"python": Python()}, coach=coach)
        return trajectory.verdicts[0]

    assert (await judged("no code")).status == "abstained"
    assert (await judged("```python\nprint(1)\n```")).score == 9.0
    assert (await judged("```python\nraise ValueError\n```")).blame == "coder"


@pytest.mark.slow
def test_the_command_of_the_page_trains_with_that_coach(site, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    site.write("receipts", SAMPLES[0])
    (line,) = re.findall(r"^mappa (train .*receipts.*)$", PAGE, re.MULTILINE)
    assert main([*shlex.split(line), *SHORT, "--name", "own"]) == 0
    with RunReader(Path("runs/own")) as reader:
        judges = {(row.agent, row.verdict.coach) for row in reader.verdicts}
        assert ("code_executor", "receipts") in judges and len(judges) == 3, judges
        assert {row.verdict.status for row in reader.verdicts} == {"scored"}


@pytest.mark.slow
def test_the_notebook_sample_trains(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    long, short = 'train={"iterations": 20}', 'train={"iterations": 1, "prompts": 2}, eval={"problems": 8}'
    assert long in SAMPLES[1]
    exec(SAMPLES[1].replace(long, short), {})
    assert "Interval" in capsys.readouterr().out and (tmp_path / "gain.svg").is_file()
