"""Prompts and weights in turns: rounds between the iterations of a training."""

import hashlib
import json
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import desk_offers
import pytest

import mappa_gepa
from mappa.cli import main
from mappa.runs import RunReader
from mappa.sessions import Run
from mappa.testing import ScriptedEngine, load_plugins
from mappa_core import GuardStop, InputError, Offer, Task, hookimpl
from mappa_gepa.feedback import blame_points
from mappa_gepa.options import ReflectionOptions
from mappa_gepa.reflection import ReflectiveOptimizer
from mappa_gepa.relay.team import DUTIES

RELAY = (
    "policies.proposer={kind: api, use: instruction-editor, options: {price: {input: 0.5, output: 2.0}}}",
    "prompts.use=reflection", "prompts.every=2", "prompts.options.tasks=24",
    "train.iterations=6", "train.prompts=6", "train.samples=1", "tasks.options.eval=12", "checkpoint.every=2",
)  # fmt: skip
DESK = ("train.iterations=4", "train.prompts=4", "prompts.every=2", "tasks.options.eval=4", "checkpoint.every=1")


@pytest.fixture
def train(registry, tmp_path):
    """Train the relay in this process; the policies are behind an API, so only prompts change."""

    def run(*words, registry=registry, recipe="gepa/tiny", name="run"):
        words = (f"run.root={tmp_path}", f"run.name={name}", *words)
        return Run.from_recipe(recipe, *words, registry=registry).train().folder

    return run


def bodies(folder, kind, *leave_out):
    with RunReader(folder) as reader:
        return [{key: one for key, one in event.body.items() if key not in leave_out} for event in reader.events(kind)]


def weights(folder):
    newest = max((folder / "checkpoints").iterdir())
    files = sorted((newest / "policies").rglob("*.safetensors"))
    assert files
    return {str(path.relative_to(newest)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def played(folder):
    """Everything that was sampled and judged, by split."""
    with RunReader(folder) as reader:
        rows = [row for split in ("train", "eval", "candidate") for row in reader.trajectories.where(split=split)]
        found = [(row.split, reader.trajectory(row.id)) for row in rows]
        return sorted(
            (split, one.id, [(step.completion.text, step.prompt) for step in one.steps], one.outcome["correct"])
            for split, one in found
        )


def test_a_prompt_that_lacks_an_instruction_gets_it_between_iterations(train, capsys):
    folder = train(*RELAY, "train.iterations=4")
    first, last = bodies(folder, "prompt_round")
    assert first["iteration"] == 2 and first["changed"] == ["sorter"] and last["iteration"] == 4
    assert DUTIES["sorter"][0] in first["prompts"]["sorter"]
    with RunReader(folder) as reader:
        rows = [row for row in reader.steps.where(split="train") if row.step.agent == "sorter"]
        followed = {(row.iteration >= 2, reader.prompts["sorter"][row.step.prompt]) for row in rows}
        original = next(iter(reader.prompts["sorter"].values()))
        assert followed == {(False, original), (True, first["prompts"]["sorter"])}
        assert reader.counts() == {"done": 4 * 6 + 2 * 12}, "candidates are not counted"
        assert {row.id.split("/")[0] for row in reader.trajectories.where(split="candidate")} >= {
            "candidate-000002-000",
            "candidate-000002-001",
        }
    choices = bodies(folder, "prompt_choice")
    assert choices[0]["kept"] and choices[0]["gain"]["low"] > 0
    assert main(["report", str(folder)]) == 0
    page = (folder / "report.html").read_text()
    assert "sorter, after iteration 2" in page and f"+{DUTIES['sorter'][0]}" in page
    capsys.readouterr()


def test_nothing_is_trained_on_the_tasks_that_choose(train, registry):
    folder = train(*RELAY)
    with RunReader(folder) as reader:
        trained = {row.task for row in reader.trajectories.where(split="train")}
        chose = {row.task for row in reader.trajectories.where(split="candidate")}
    assert len(chose) == 24 and not trained & chose


def test_tasks_that_choose_take_their_clusters_with_them():
    tasks = [Task(id=f"{cluster}{number}", prompt="", cluster=cluster) for cluster in "abcde" for number in range(4)]
    apart = ReflectiveOptimizer(ReflectionOptions(tasks=2)).set_apart(tasks)
    assert {name[0] for name in apart} < set("abcde") and len(apart) % 4 == 0 and len(apart) >= 2
    assert ReflectiveOptimizer(ReflectionOptions(tasks=2)).set_apart(tasks[::-1]) == apart, "whatever their order"


def test_a_proposal_that_holds_an_answer_is_refused_and_not_played(train):
    folder = train(*RELAY, "policies.proposer.options.mode=answer")
    assert {body["refused"] for body in bodies(folder, "proposal")} == {"leak"}
    assert not bodies(folder, "candidate") and not any(body["kept"] for body in bodies(folder, "prompt_choice"))


def test_luck_changes_no_prompt(train):
    folder = train(*RELAY, "policies.proposer.options.mode=idle", "policies.default.options.slip=0.2")
    choices = bodies(folder, "prompt_choice")
    assert len(choices) == 6 and not any(choice["kept"] for choice in choices)


class Still:
    """An optimiser that changes nothing."""

    def set_apart(self, tasks):
        return ()

    async def improve(self, session, folder, done):
        return {}


@hookimpl
def offer_still():
    yield Offer("still", lambda options: Still())


def test_rounds_that_change_nothing_leave_every_weight_as_it_is_without_them(train):
    still = load_plugins(
        only=["engine"],
        modules={
            "gepa": mappa_gepa,
            "desk": desk_offers,
            "still": SimpleNamespace(mappa_prompt_optimizers=offer_still),
        },
    )
    without = train(*DESK, "prompts=null", registry=still, recipe="desk/tiny", name="without")
    words = [*DESK[:2], *DESK[3:]]
    between = train(*words, "prompts={use: still, every: 1}", registry=still, recipe="desk/tiny", name="between")
    assert len(bodies(between, "prompt_round")) == 4
    assert weights(between) == weights(without) and played(between) == played(without)


class Numbering(Still):
    """An optimiser that numbers its rounds."""

    async def improve(self, session, folder, done):
        return {"sorter": f"Round {done}."}


@hookimpl
def offer_numbering():
    yield Offer("numbering", lambda options: Numbering())


def test_every_iteration_is_played_with_the_prompts_of_the_last_round(train):
    modules = {"gepa": mappa_gepa, "numbering": SimpleNamespace(mappa_prompt_optimizers=offer_numbering)}
    words = (RELAY[0], *RELAY[5:], "train.iterations=4", "prompts={use: numbering, every: 1}")
    folder = train(*words, registry=load_plugins(only=[], modules=modules))
    with RunReader(folder) as reader:
        rows = [row for row in reader.steps.where(split="train") if row.step.agent == "sorter" and row.iteration]
        followed = {(row.iteration, reader.prompts["sorter"][row.step.prompt]) for row in rows}
    assert followed == {(done, f"Round {done}.") for done in (1, 2, 3)}


def test_a_round_learns_from_the_iterations_since_the_last_one(train, monkeypatch):
    seen = set()

    def spy(judged, agents):
        seen.add(tuple(sorted({one.id.partition("/")[0] for one in judged})))
        return blame_points(judged, agents)

    monkeypatch.setattr("mappa_gepa.reflection.blame_points", spy)
    train(*RELAY, "train.iterations=4")
    assert seen == {("train-000000", "train-000001"), ("train-000002", "train-000003")}


class Ahead(ScriptedEngine):
    """An engine that samples while it updates."""

    deterministic = False
    max_staleness = 1


@hookimpl
def offer_ahead():
    yield Offer("ahead", lambda options: Ahead(lambda prompt, sampling: "hello"))


def test_rounds_are_refused_where_rollouts_are_collected_ahead(train, tmp_path):
    ahead = load_plugins(
        only=["engine"],
        modules={"gepa": mappa_gepa, "desk": desk_offers, "ahead": SimpleNamespace(mappa_engines=offer_ahead)},
    )
    words = ("engine={use: ahead}", "estimator.options.kl_coef=0", "train.iterations=1", *DESK[1:])
    with pytest.raises(InputError, match="max_staleness=1: what is collected ahead would follow prompts of before"):
        train(*words, registry=ahead, recipe="desk/tiny", name="refused")
    assert not (tmp_path / "refused").exists()
    words = [word for word in words if word != "prompts.every=2"]
    assert train(*words, "prompts=null", registry=ahead, recipe="desk/tiny", name="without").exists()


KILLED_AT = """
import os, signal, sys
from mappa.store.writer import Store

end, record, last, made = Store.end_trajectory, Store.record_event, int(sys.argv.pop(1)), 0

def counted(method):
    def call(*arguments, **named):
        global made
        if made == last:
            os.kill(os.getpid(), signal.SIGKILL)
        made += 1
        return method(*arguments, **named)
    return call

Store.end_trajectory, Store.record_event = counted(end), counted(record)
from mappa.cli import main
raise SystemExit(main(sys.argv[1:]))
"""
ENDLESS = 10**9


def run(folder, writes, *arguments):
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-c", KILLED_AT, str(writes), "train", *arguments, "--quiet"]
    environment = {**os.environ, "COLUMNS": "200", "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment)


def assert_resumes_equal(tmp_path, start, moments):
    whole = run(tmp_path / "whole", ENDLESS, *start)
    assert whole.returncode == 0, whole.stderr
    arguments = start
    for moment in moments:
        killed = run(tmp_path / "killed", moment, *arguments)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        arguments = ["--resume", "runs/x"]
    ended = run(tmp_path / "killed", ENDLESS, *arguments)
    assert ended.returncode == 0, ended.stderr
    first, second = (tmp_path / name / "runs/x" for name in ("whole", "killed"))
    for kind in ("prompt_round", "proposal", "candidate", "prompt_choice"):
        once = [json.dumps(body, sort_keys=True) for body in bodies(first, kind)]
        assert list(dict.fromkeys(json.dumps(body, sort_keys=True) for body in bodies(second, kind))) == once, kind
    assert len(bodies(second, "proposal")) == len(bodies(first, "proposal")), "nothing is asked, and paid, twice"
    assert played(second) == played(first)
    return first, second


@pytest.mark.slow
def test_a_training_that_is_killed_in_and_between_rounds_ends_with_equal_prompts(tmp_path):
    start = ["--plugin", "gepa", "--name", "x", *RELAY, "sampling.concurrency=1"]
    assert_resumes_equal(tmp_path, start, (35, 60, 17, 41))


@pytest.mark.soak
def test_killed_at_ten_moments_prompts_and_weights_are_equal(tmp_path, desk, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", desk)
    start = ["--plugin", "desk", "--name", "x", "checkpoint.every=3", *DESK]
    start[start.index("checkpoint.every=1")] = "checkpoint.every=2"
    whole, killed = assert_resumes_equal(tmp_path, start, (20, 45, 60, 33, 50, 25, 40, 30, 20, 15))
    assert weights(whole) == weights(killed)


def test_a_stop_in_a_round_is_made_good_by_a_resume(train, registry, monkeypatch):
    stopped = ReflectiveOptimizer.improve

    async def stop(self, session, folder, done):
        raise GuardStop("the proposer is away")

    monkeypatch.setattr(ReflectiveOptimizer, "improve", stop)
    with pytest.raises(GuardStop, match="the proposer is away"):
        train(*RELAY, name="stopped")
    monkeypatch.setattr(ReflectiveOptimizer, "improve", stopped)
    whole = train(*RELAY, name="whole")
    folder = Run.resume(whole.parent / "stopped", registry=registry).train().folder
    assert bodies(folder, "prompt_round") == bodies(whole, "prompt_round") and played(folder) == played(whole)


def test_a_checkpoint_is_evaluated_and_improved_with_the_prompts_that_it_holds(train, capsys, monkeypatch):
    folder = train(*RELAY)
    changed = bodies(folder, "prompt_round")[-1]["prompts"]["sorter"]
    manifest = json.loads((folder / "checkpoints/000006/manifest.json").read_text())
    assert manifest["prompts"]["sorter"] == changed
    monkeypatch.chdir(folder.parent)
    assert main(["eval", "--run", str(folder), "--quiet", "run.name=evaluated"]) == 0
    with RunReader(folder.parent / "evaluated") as reader:
        assert list(reader.prompts["sorter"].values()) == [changed]
    assert main(["eval", "--run", str(folder), "--quiet", "run.name=other", "agents.sorter.prompt=Do nothing."]) == 0
    with RunReader(folder.parent / "other") as reader:
        assert list(reader.prompts["sorter"].values()) == ["Do nothing."]
    search = ["--rollouts", "60", "--choose", "6", "--report", "8", "--patience", "1", "run.name=search", "--json"]
    assert main(["improve", "--run", str(folder), "--proposer", "instruction-editor", *search]) == 0
    with RunReader(folder.parent / "search") as reader:
        assert next(iter(reader.prompts["sorter"].values())) == changed
    capsys.readouterr()


def test_prompts_of_agents_with_any_name_go_on_from_a_checkpoint(train, dotted, capsys, monkeypatch):
    folder = train(*RELAY)
    monkeypatch.chdir(folder.parent)
    assert main(["eval", "--run", str(folder), "--quiet", "run.name=evaluated"]) == 0, capsys.readouterr().err
    search = ["--rollouts", "60", "--choose", "6", "--report", "8", "--patience", "1", "run.name=search", "--json"]
    assert main(["improve", "--run", str(folder), "--proposer", "instruction-editor", *search]) == 0
    changed = bodies(folder, "prompt_round")[-1]["prompts"]
    assert changed[dotted].endswith("Be brief 😀.")
    for name in ("evaluated", "search"):
        with RunReader(folder.parent / name) as reader:
            assert {agent: next(iter(texts.values())) for agent, texts in reader.prompts.items()} == changed
    assert main(["advise", str(folder)]) == 0
    capsys.readouterr()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("prompts.policy=nobody",), "prompts.policy=nobody is no policy behind an API"),
        (("prompts.options.tasks=1",), "prompts.options.tasks: must be at least 2, not 1"),
        (("prompts.use=reflect",), "Did you mean reflection"),
        (("prompts.every=0",), "prompts.every: must be at least 1"),
        (("prompts.options.tasks=240",), "only 0 training tasks"),
    ],
)
def test_a_setting_that_cannot_be_used_is_refused(train, words, says):
    with pytest.raises(InputError, match=says):
        train(*RELAY, *words)
