"""The tiny recipe, for real: model, sampler, programs, coach, learner, store."""

import hashlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest
from pyarrow import parquet
from transformers import AutoTokenizer

from mappa.cli import main
from mappa.runs import RunReader
from mappa.sessions import Run

SMALL = ("train.prompts=3", "train.iterations=4", "checkpoint.every=2", "eval.problems=6")


def start(root: Path, name: str, *settings: str) -> Run:
    return Run.from_recipe("mathchat/tiny", *SMALL, f"run.root={root}", f"run.name={name}", *settings)


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "mappa", *arguments]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A run of four iterations that nobody disturbed."""
    return start(tmp_path_factory.mktemp("runs"), "whole").train().folder


def weights(folder: Path) -> dict[str, str]:
    files = (folder / "checkpoints" / "000004").rglob("*.safetensors")
    return {f"{file.parent.name}/{file.name}": hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def record(folder: Path) -> dict[str, list]:
    """Everything that a run recorded but times."""
    with RunReader(folder) as reader:
        metrics = [replace(report, seconds={}) for report in reader.iterations]
    with sqlite3.connect(folder / "run.db") as db:
        ids = [row[0] for row in db.execute("SELECT id FROM trajectories ORDER BY id")]
        verdicts = db.execute("SELECT id, step, status, score, blame FROM verdicts ORDER BY id").fetchall()
    with RunReader(folder) as reader:
        steps = [trace(reader, identity) for identity in ids]
    return {"metrics": metrics, "verdicts": verdicts, "steps": steps}


def trace(reader: RunReader, identity: str) -> list:
    trajectory = reader.trajectory(identity)
    return [dict(trajectory.outcome)] + [
        (
            step.id,
            step.messages,
            step.completion.tokens.tolist(),
            step.completion.logprobs.tolist(),
            [(result.status, result.stdout, result.stderr, result.exit_code) for result in step.results],
        )
        for step in trajectory.steps
    ]


@pytest.mark.slow
def test_two_runs_of_one_seed_are_equal_bit_for_bit(whole, tmp_path):
    again = start(tmp_path, "again").train().folder
    assert weights(again) == weights(whole)
    assert record(again) == record(whole)


def test_another_seed_gives_another_run(whole, tmp_path):
    other = start(tmp_path, "other", "seed=1", "train.iterations=1").train().folder
    assert record(other)["steps"] != record(whole)["steps"]


@pytest.mark.slow
def test_a_run_killed_in_the_middle_and_resumed_equals_one_that_was_not(whole, tmp_path):
    settings = (*SMALL, f"run.root={tmp_path}")
    process = subprocess.Popen(command("train", "--plugin", "mathchat", "--quiet", "--name", "killed", *settings))
    folder = tmp_path / "killed"
    wait_until(lambda: steps_of(folder, iteration=2) >= 5, process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert json.loads((folder / "summary.json").read_text())["status"] == "running"
    Run.resume(folder).train()
    assert weights(folder) == weights(whole)
    assert record(folder) == record(whole)


def steps_of(folder: Path, iteration: int) -> int:
    if not (folder / "run.db").exists():
        return 0
    query = (
        "SELECT count(*) FROM steps JOIN trajectories ON trajectories.id = steps.trajectory "
        "WHERE split = 'train' AND iteration = ?"
    )
    try:
        with sqlite3.connect(f"file:{folder / 'run.db'}?mode=ro", uri=True) as db:
            return db.execute(query, (iteration,)).fetchone()[0]
    except sqlite3.OperationalError:
        return 0


def wait_until(reached, process: subprocess.Popen) -> None:
    end = time.monotonic() + 120
    while not reached():
        assert process.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < end, "the run did not come to its third iteration"
        time.sleep(0.005)


def test_sampler_and_learner_agree_on_every_token(whole):
    with RunReader(whole) as reader:
        found = [policy["mismatch_max"] for report in reader.iterations for policy in report.policies.values()]
    assert len(found) == 12
    assert max(found) < 1e-4


def test_the_code_that_ran_is_the_decoded_text_byte_for_byte(whole):
    with RunReader(whole) as reader:
        steps = [step for row in reader.trajectories for step in reader.trajectory(row.id).steps]
    ran = [(call, step) for step in steps for call in step.calls if call.error is None]
    assert len(ran) > 20
    assert all(call.arguments["code"] in step.completion.text for call, step in ran)


def test_the_second_turn_of_the_coder_extends_the_first_token_for_token(whole):
    with RunReader(whole) as reader:
        trajectories = [reader.trajectory(row.id) for row in reader.trajectories]
    pairs = [
        (first.completion, second.completion)
        for trajectory in trajectories
        for first, second in zip(trajectory.steps, trajectory.steps[1:], strict=False)
        if first.agent == second.agent
    ]
    assert pairs
    for first, second in pairs:
        history = [*first.prompt_tokens.tolist(), *first.tokens.tolist()]
        assert second.prompt_tokens.tolist()[: len(history)] == history


def test_policies_move_apart_from_each_other(whole):
    assert len({digest for name, digest in weights(whole).items() if name.endswith("/weights.safetensors")}) == 3


@pytest.mark.slow
def test_eval_grades_any_file_and_counts_prompts_that_do_not_fit(tmp_path):
    tasks = [
        {"prompt": "Ana has 3 pens. Ana buys 4. How many pens?", "answer": 7},
        {"prompt": "x " * 3000, "answer": "1"},
    ]
    (tmp_path / "tasks.json").write_text(json.dumps(tasks))
    settings = ("tasks.use=file", f"tasks.options.path={tmp_path / 'tasks.json'}", f"run.root={tmp_path / 'runs'}")
    done = subprocess.run(
        command("eval", "--plugin", "mathchat", *settings, "--json"), capture_output=True, text=True, env=os.environ
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["problems"], result["rollouts"], result["not_finished"]) == (2, 2, {"PromptTooLong": 1})


@pytest.mark.slow
def test_a_checkpoint_is_evaluated_as_the_run_left_it(whole, tmp_path):
    done = subprocess.run(
        command("eval", "--run", str(whole), "--json", f"run.root={tmp_path}"), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    after = json.loads((whole / "summary.json").read_text())["eval"]["after"]
    assert json.loads(done.stdout)["mean"] == after["mean"]


def test_what_is_exported_is_what_was_shown_and_sampled_token_for_token(whole, tmp_path):
    out = tmp_path / "data"
    assert main(["export", str(whole), "--to", "sft", "--min-score", "5", "--out", str(out)]) == 0
    tokenizer = AutoTokenizer.from_pretrained(files("mappa_mathchat") / "models" / "tiny")
    with RunReader(whole) as reader:
        rows = list(reader.trajectories.where(split="train"))
        steps = {step.id: step for row in rows for step in reader.trajectory(row.id).steps}
    seen = 0
    for agent in ("problem_solver", "code_executor", "verifier"):
        for row in parquet.read_table(out / f"{agent}.parquet").to_pylist():
            completion = steps[row["source"]].completion
            given = {"tools": json.loads(row["tools"]) if row.get("tools") else None, "return_dict": False}
            prompt = tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, **given)
            both = tokenizer.apply_chat_template(row["prompt"] + row["completion"], **given)
            assert prompt == completion.prompt_tokens.tolist()
            # A model may spell a text in more than one way; a template knows one.
            assert tokenizer.decode(both[len(prompt) :]) == tokenizer.decode(completion.tokens)
            seen += 1
    assert seen > 20
