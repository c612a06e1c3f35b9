"""Every command that the page on plans shows works, but for those that train."""

import re
import shlex
from pathlib import Path

import pytest

from mappa_core.cli import main
from mappa_core.engine.options import ClusterOptions
from mappa_core.plugins import load
from mappa_core.training.run import Run

PAGE = (Path(__file__).parents[2] / "docs" / "plan.md").read_text()
COMMANDS = [line for block in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
PLANS = [command for command in COMMANDS if "mappa plan" in command]


@pytest.fixture(scope="module")
def short(tmp_path_factory) -> Path:
    """What stands for the run that the page trains, with less of it."""
    folder = tmp_path_factory.mktemp("here")
    settings = ("run.name=short", "train.iterations=1", "train.prompts=2", "eval.problems=2")
    Run.from_recipe("mathchat/tiny", f"run.root={folder / 'runs'}", *settings, registry=load()).train()
    return folder


@pytest.mark.parametrize("command", PLANS)
def test_a_plan_of_the_page_is_printed(command, short, monkeypatch, capsys):
    monkeypatch.chdir(short)
    assert main(shlex.split(command)[1:]) == 0, capsys.readouterr().err
    assert "mathchat/tiny" in capsys.readouterr().out


def test_the_page_names_settings_that_are_there():
    named = re.findall(r"^\| `engine\.options\.(\w+)=", PAGE, re.MULTILINE)
    assert len(named) == 5 and set(named) <= set(vars(ClusterOptions()))
