"""A plugin that is one file: the team of the page, trained, killed, resumed and judged; and what is refused."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from hashlib import sha256
from pathlib import Path

import pytest

from mappa.cli import main
from mappa.runs import RunReader

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/how-to/one-file.md"
TEAM = re.search(r'```python title="team.py"\n(.*?)```', PAGE.read_text("utf-8"), re.DOTALL)[1]
SHORT = ("train.prompts=1", "train.samples=2", "eval.problems=1", "eval.samples=1", "checkpoint.every=1")
CHANGED = TEAM.replace("10 if good", "9 if good")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch) -> Path:
    """A folder with the file; modules of files go with the test."""
    (tmp_path / "team.py").write_text(TEAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in [name for name in sys.modules if name in ("team", "two", "part")]:
        monkeypatch.delitem(sys.modules, name)
    return tmp_path


@pytest.fixture(scope="module")
def killed(tmp_path_factory) -> Path:
    """The folder of a run of three iterations that was killed after the first."""
    folder = tmp_path_factory.mktemp("killed")
    (folder / "team.py").write_text(TEAM)
    words = ("train", "--plugin", "./team.py", "--quiet", "--name", "run", "train.iterations=3", *SHORT)
    with subprocess.Popen([sys.executable, "-m", "mappa", *words], cwd=folder) as process:
        while process.poll() is None and not (folder / "runs/run/checkpoints/000001").exists():
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
    return folder / "runs/run"


@pytest.fixture
def run(killed, here) -> Path:
    """A copy of that run beside the file."""
    copy = Path(shutil.copytree(killed, here / "runs/run"))
    # The file lies elsewhere now, and the user says so.
    assert main(["train", "--resume", str(copy), "--plugin", "./team.py", "--quiet", "train.iterations=3"]) == 0
    return copy


def recorded(run: Path) -> list[str]:
    """What the config of a run begins with."""
    return (run / "config.yaml").read_text().splitlines()[:2]


def test_the_file_of_the_page_is_short():
    assert len(TEAM.splitlines()) <= 60


@pytest.mark.slow
def test_a_team_in_a_file_is_trained_killed_resumed_and_judged_anew(run, here, capsys):
    digest = sha256(TEAM.encode()).hexdigest()
    assert recorded(run) == ["recipe: team/plain", f"plugin: {{place: {here}/team.py, sha256: {digest}}}"]
    assert (run / "files" / digest[:2] / digest).read_text() == TEAM
    capsys.readouterr()
    assert main(["judge", str(run), "--coach", "judge", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["counts"]["scored"] == 18
    with RunReader(run) as reader:
        assert len(list(reader.iterations)) == 3
        played = [reader.trajectory(row.id) for row in reader.trajectories.where(split="train")]
    assert len(played) == 6 and {step.agent for step in played[0].steps} == {"researcher", "writer", "editor"}
    assert {verdict.coach for trajectory in played for verdict in trajectory.verdicts} == {"judge"}


def test_a_changed_file_is_held_against_the_run_until_the_user_names_it(run, here, capsys):
    (here / "team.py").write_text(CHANGED)
    for words in (
        ("train", "--resume", str(run), "train.iterations=4"), ("judge", str(run), "--coach", "judge"),
        ("eval", "--run", str(run)), ("prove", str(run)), ("advise", str(run)),
    ):  # fmt: skip
        assert main([*words]) == 2
        said = capsys.readouterr().err
        assert "team.py is not what it was when the run was made" in said
        assert (
            "\n  -    return Verdict.scored(10 if good" in said and "\n  +    return Verdict.scored(9 if good" in said
        )
        assert f"--plugin {here}/team.py" in said and str(run / "files") in said
    assert main(["judge", str(run), "--coach", "judge", "--plugin", "./team.py", "--quiet"]) == 0
    assert main(["train", "--resume", str(run), "--plugin", "./team.py", "--quiet", "train.iterations=4"]) == 0
    assert sha256(CHANGED.encode()).hexdigest() in recorded(run)[1]


def test_a_file_that_is_gone_is_named_with_what_is_kept_of_it(run, here, capsys):
    (here / "team.py").rename(here / "elsewhere.py")
    assert main(["judge", str(run), "--coach", "judge"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"{here}/team.py, which the run was made with, is not there" in said and f"{run}/files/" in said


def test_a_file_names_no_other_recipe_of_a_run(run, capsys):
    assert main(["train", "--resume", str(run), "--plugin", "mathchat"]) == 2
    assert "leave out --plugin" in capsys.readouterr().err


WORKFLOW = """
from mappa import coach, shaper, tool
from mappa_core import Role, Workflow

class {0}(Workflow):
    agents = {{"one": Role(brief="Acts.")}}

    async def run(self, stage):
        pass
"""
REFUSED = {
    "syntax": ("x = (1,\ndef f(:\n", r"part\.py:2: not valid Python"),
    "no workflow": ("x = 1\n", "part.py has no workflow: a subclass of mappa_core.Workflow"),
    "two": (WORKFLOW.format("A") + WORKFLOW.format("B"), r"2 workflows, A \(\S+part\.py:5\) and B .*part\.py:A"),
    "tool": (WORKFLOW.format("A") + "@tool\ndef add(a): 'Add.'\n", r"add \(\S+part\.py:\d+\): the parameter 'a'"),
    "coach": (WORKFLOW.format("A") + "@coach\ndef judge(): pass\n", r"judge \(\S+\): a coach is a function of a scene"),
    "shaper": (WORKFLOW.format("A") + "@shaper\nasync def cut(a, b): pass\n", "a shaper is a plain function"),
    "settings": (WORKFLOW.format("A") + "settings = 3\n", "`settings` is a mapping"),
    "nothing else": (WORKFLOW.format("A"), r"coach\.use, tasks\.use: no value.*in the file: a function.*, a list"),
    "hooks beside marks": (
        WORKFLOW.format("A") + "from mappa_core import hookimpl\n"
        "@hookimpl\ndef mappa_coaches(): return []\n@coach\ndef judge(scene): pass\n",
        r"has hooks \(mappa_coaches\) and what is marked beside them",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_with_a_file_is_said_in_one_line(name, here, capsys):
    text, said = REFUSED[name]
    (here / "part.py").write_text(text)
    assert main(["config", "--plugin", "./part.py"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(said, line), line


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("./missing.py", "missing.py: there is no such file"),
        ("missing.part", "missing.part: there is no such module here"),
        ("team:Nobody", "team has no 'Nobody'"),
        ("team:look_up", "neither a Workflow nor an object with hooks"),
        ("mathcat", "Did you mean mathchat?"),
    ],
)
def test_what_is_not_there_is_said(given, said, capsys):
    assert main(["config", "--plugin", given]) == 2
    assert said in capsys.readouterr().err


def test_an_error_of_the_file_itself_is_its_own(here):
    (here / "part.py").write_text("import json\njson.loads('{')\n")
    with pytest.raises(json.JSONDecodeError):
        main(["config", "--plugin", "./part.py"])
    assert "part" not in sys.modules


@pytest.mark.parametrize(
    ("given", "name"),
    [("team", "team"), ("team:Newsroom", "Newsroom"), ("./team.py:Newsroom", "Newsroom"), ("./two.py:B", "B")],
)
def test_a_module_and_an_object_of_one_are_plugins_too(given, name, here, capsys):
    (here / "two.py").write_text(WORKFLOW.format("A") + WORKFLOW.format("B") + "tasks = []\n")
    assert main(["config", "--plugin", given, "--json", "coach.use=function", "coach.options.function=a:b"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["plugin"], shown["recipe"], shown["config"]["workflow"]["use"]) == (name, "plain", name)


def test_a_file_that_is_called_as_what_is_there_takes_nobodys_place(here, capsys):
    (here / "mathchat.py").write_text(WORKFLOW.format("A"))
    assert main(["config", "--plugin", "./mathchat.py"]) == 2
    assert "there is a plugin called 'mathchat' already (mappa-mathchat)" in capsys.readouterr().err
    (here / "json.py").write_text(WORKFLOW.format("A") + "tasks = []\n")
    assert main(["config", "--plugin", "./json.py", "coach.use=evidence"]) == 0
    assert sys.modules["json"] is json


def test_hooks_of_a_file_work_as_those_of_a_package(here, capsys):
    (here / "part.py").write_text(
        WORKFLOW.format("A") + "from mappa_core import Offer, hookimpl\n"
        "@hookimpl\ndef mappa_workflows():\n    yield Offer('own', lambda options: A())\n"
    )
    assert main(["plugins", "--plugin", "./part.py", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)["plugins"]["part"]
    assert (shown["package"], shown["workflows"]) == (str(here / "part.py"), ["own"])


def test_a_saved_config_is_of_one_text_of_the_file(here, capsys):
    assert main(["config", "--plugin", "./team.py"]) == 0
    (here / "own.yaml").write_text(capsys.readouterr().out)
    assert main(["config", "--config", "own.yaml"]) == 2
    assert f"name it, --plugin {here}/team.py" in " ".join(capsys.readouterr().err.split())
    assert main(["config", "--config", "own.yaml", "--plugin", "./team.py"]) == 0
    (here / "team.py").write_text(CHANGED)
    assert main(["config", "--config", "own.yaml", "--plugin", "./team.py"]) == 2
    assert "remove its line `plugin:`" in capsys.readouterr().err
