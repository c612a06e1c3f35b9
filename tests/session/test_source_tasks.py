"""Files of stored tasks: whatever paths a run.db names, only those of the run's own source are opened."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mappa.cli import main
from mappa.runs import RunFolder, RunReader
from mappa.session.source_tasks import SourceTasks
from mappa.sessions import Run
from mappa.testing import load_plugins
from mappa_core import Role, Task, Workflow
from mappa_core.config.schema import RunConfig
from mappa_core.records import Label

SUMS = '''
from pathlib import Path
from mappa.testing import ScriptedEngine
from mappa_core import Coach, Message, NoOptions, Role, Task, Verdict, Workflow

HERE = Path(__file__).parent
PROGRAM = "```python\\nopen('sum.txt', 'w').write('7')\\n```"


class Numbers:
    def __init__(self, options): pass

    def load(self, split):
        (HERE / "loaded").write_text("loaded")
        (HERE / "numbers.txt").write_text("1 2 3")
        (HERE / "truth.txt").write_text("6")
        files = {"numbers.txt": str(HERE / "numbers.txt")}
        return [
            Task(id=f"{split}-{n}", prompt=f"sum {n}", reference=str(HERE / "truth.txt"), files=files) for n in range(2)
        ]


class Sums(Workflow):
    agents = {"clerk": Role(brief="adds up", needs=("numbers.txt",), produces=("sum.txt",))}

    def __init__(self, options): pass

    async def run(self, stage):
        await stage.act("clerk", [Message(role="user", content=stage.task.prompt)], tools=("python",))
        stage.record(**await stage.grade_file("sum.txt"))

    async def grade_file(self, file, task):
        return {"correct": float(file.read_text() == Path(task.reference).read_text())}

    async def reveal(self, scene, bench):
        return "It is " + Path(scene.task.reference).read_text()


class Curious(Coach):
    """Tells what its bench finds in the files of the task, and the truth."""

    def __init__(self, options): pass

    def set_bench(self, bench):
        self._bench = bench

    async def score(self, scene):
        inputs = {name: Path(path) for name, path in scene.task.files.items()}
        code = "import pathlib; print(sorted(path.read_text() for path in pathlib.Path().iterdir()))"
        ran = await self._bench.run(code, inputs=inputs)
        return Verdict.scored(3, f"{ran.result.stdout.strip()} {scene.truth}", blame="clerk")


class Plain(Coach):
    def __init__(self, options): pass

    async def score(self, scene):
        return Verdict.scored(3, str(scene.truth), blame="clerk")


@hookimpl
def mappa_tasks():
    yield Offer("sums_numbers", Numbers, NoOptions)


@hookimpl
def mappa_workflows():
    yield Offer("sums", Sums, NoOptions)


@hookimpl
def mappa_coaches():
    yield Offer("curious", Curious, NoOptions)
    yield Offer("plain", Plain, NoOptions)


@hookimpl
def mappa_engines():
    yield Offer("scripted_sums", lambda options: ScriptedEngine(lambda prompt, sampling: PROGRAM))


@hookimpl
def mappa_losses():
    yield Offer("no_loss_of_sums", lambda options: None)


@hookimpl
def mappa_recipes():
    return {"tiny": HERE / "tiny.yaml"}
'''
RECIPE = """
tasks: {use: sums_numbers}
workflow: {use: sums}
policies: {default: {model: none}}
sampling: {max_tokens: 99}
coach: {use: plain, reference_for: [clerk]}
shapers: [{use: scale}]
estimator: {use: reinforce}
loss: {use: no_loss_of_sums}
engine: {use: scripted_sums}
tools: {python: {use: python, options: {workers: 1}}}
train: {iterations: 1, prompts: 2, samples: 1}
eval: {problems: 1}
"""
CANARY = "planted-0123456789"


@pytest.fixture(scope="module")
def registry(module_site):
    module_site.write("sums", SUMS)
    (module_site.folder / "tiny.yaml").write_text(RECIPE)
    return load_plugins(only=("sums", "look", "engine", "sandbox"))


@pytest.fixture(scope="module")
def trained(registry, tmp_path_factory) -> Path:
    words = (f"run.root={tmp_path_factory.mktemp('runs')}", "run.name=run")
    return Run.from_recipe("sums/tiny", *words, registry=registry).train().folder


@pytest.fixture
def run(trained, tmp_path, monkeypatch) -> Path:
    """A copy of the run that was made elsewhere, in a folder with a file that is nobody else's business."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret").write_text(CANARY)
    return Path(shutil.copytree(trained, tmp_path / "run"))


Change = Callable[[dict[str, Any], str], None]


def other_file(task: dict[str, Any], secret: str) -> None:
    task["files"]["secret"] = secret


def only_secret(task: dict[str, Any], secret: str) -> None:
    task["files"] = {"secret": secret}


def only_reference(task: dict[str, Any], secret: str) -> None:
    task |= {"files": {}, "reference": secret}


def unknown_task(task: dict[str, Any], secret: str) -> None:
    task |= {"id": "never-heard-of", "files": {"numbers.txt": secret}}


def other_prompt(task: dict[str, Any], secret: str) -> None:
    task |= {"prompt": "show it", "files": {"numbers.txt": secret}, "reference": secret}


def same_names(task: dict[str, Any], secret: str) -> None:
    task |= {"files": {"numbers.txt": secret}, "reference": secret}


REFUSED: Mapping[str, tuple[Change, str]] = {
    "another file": (other_file, "has another task of this id"),
    "only another file": (only_secret, "has another task of this id"),
    "a reference alone": (only_reference, "has another task of this id"),
    "an unknown task": (unknown_task, "has no such task"),
    "another prompt": (other_prompt, "has another task of this id"),
}
# Trust in a config is none in the paths of run.db, which may be another's.
COMMANDS = {
    "judge": ("judge", "run", "--coach", "curious", "--quiet", "--trust"),
    "prove": ("prove", "run", "--coach", "curious", "--quiet", "--trust", "run.root=proofs"),
    "coach eval": ("coach", "eval", "--run", "run", "--coach", "plain", "--against", "outcome", "--quiet", "--trust"),
}


def plant(run: Path, change: Change) -> None:
    """Change every task that the run recorded."""
    with sqlite3.connect(run / "run.db") as database:
        for identity, text in database.execute("SELECT id, task FROM trajectories").fetchall():
            task = json.loads(text)
            change(task, str(run.parent / "secret"))
            database.execute("UPDATE trajectories SET task = ? WHERE id = ?", (json.dumps(task), identity))
    database.close()


def reasons(run: Path, phase: str) -> set[str]:
    with RunReader(run) as reader:
        return {row.verdict.reasoning for row in reader.verdicts if row.verdict.phase == phase}


@pytest.mark.parametrize("what", COMMANDS)
@pytest.mark.parametrize("case", REFUSED)
def test_a_task_that_the_source_lacks_is_refused_before_anything_is_opened(case, what, run, registry, capsys):
    change, why = REFUSED[case]
    plant(run, change)
    assert main([*COMMANDS[what]]) == 2
    said = capsys.readouterr()
    assert "was recorded with files" in said.err and why in said.err and "tasks.use=sums_numbers" in said.err
    assert CANARY not in said.err + said.out and "Traceback" not in said.err
    assert reasons(run, "again") == set() and not (run.parent / "proofs").exists()


@pytest.mark.parametrize("planted", [False, True])
def test_a_run_is_judged_on_the_files_of_its_source(planted, run, registry, capsys):
    if planted:
        plant(run, same_names)
    found = "['1 2 3'] It is 6"
    for split in ("train", "eval"):
        assert main([*COMMANDS["judge"], "--split", split]) == 0, capsys.readouterr().err
    assert reasons(run, "again") == {found}
    assert main([*COMMANDS["coach eval"]]) in (0, 1), capsys.readouterr().err
    capsys.readouterr()
    assert main([*COMMANDS["prove"], "--json"]) == 0, capsys.readouterr().err
    assert {proof["reason"] for proof in json.loads(capsys.readouterr().out)["proofs"]} == {found}


def test_tasks_that_are_texts_are_taken_as_recorded_and_need_no_source():
    def build():
        raise AssertionError("the source was built")

    class Texts(Workflow):
        agents: Mapping[str, Role] = {}

        async def run(self, stage):
            raise NotImplementedError

    task = Task(id="t", prompt="p", reference="/etc/passwd")
    assert SourceTasks(RunConfig(), Texts(), build).find(task, "train") is task
    with pytest.raises(AssertionError, match="the source was built"):
        SourceTasks(RunConfig(), Texts(), build).find(replace(task, files={"a": ""}), "train")


def test_what_looks_at_a_run_is_shown_names_of_files_without_paths(run, registry, capsys):
    plant(run, other_file)
    with RunReader(run) as reader:
        first = next(iter(reader.trajectories)).id
        shown = reader.trajectory(first).task
        assert shown == reader.task(first)
    assert shown.files == {"numbers.txt": "", "secret": ""}
    assert main(["observe", "run"]) == 0 and main(["runs", "trace", "run", first]) == 0
    assert CANARY not in capsys.readouterr().out


def test_labels_are_judged_on_the_files_of_the_source_where_the_truth_is_shown(run, registry, capsys):
    with RunFolder.open(run) as folder, RunReader(run) as reader:
        for row in reader.trajectories.where(split="train"):
            step = reader.trajectory(row.id).steps[0]
            folder.store.record_label(Label(trajectory=row.id, kind="guilt", step=step.id, agent=step.agent))
    plant(run, only_reference)
    words = ("coach", "eval", "--run", "run", "--coach", "plain", "--quiet", "--trust")
    assert main([*words]) in (0, 1), capsys.readouterr().err
    assert main([*words, "--truth", "shown"]) == 2
    said = capsys.readouterr()
    assert "has another task of this id" in said.err and CANARY not in said.err + said.out


def test_an_imported_run_has_no_files_to_open(run, registry, capsys):
    said = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "no"}]
    Path("log.jsonl").write_text(json.dumps({"messages": said, "ok": False}))
    assert main(["import", "log.jsonl", "--outcome", "ok", "--name", "mine"]) == 0
    judge = ("judge", "runs/mine", "--coach", "plain", "--quiet")
    assert main([*judge]) == 0, capsys.readouterr().err
    plant(Path("runs/mine").absolute(), only_secret)
    assert main([*judge]) == 2
    assert "has another task of this id" in capsys.readouterr().err
