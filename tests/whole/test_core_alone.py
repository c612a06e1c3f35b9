"""Core alone trains: policies behind an API, a third party's coach, no engine, no torch."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("core_alone.py")


def mappa(folder, *arguments):
    command = [sys.executable, str(PROGRAM), *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("alone")


def test_a_team_behind_an_api_runs_its_iterations_and_is_judged(folder):
    done = mappa(folder, "train", "--plugin", "doubles", "--name", "first", "train.iterations=1", "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["status"], summary["iterations"]) == ("done", 1)
    assert summary["coach"]["verdicts"] == 4 and summary["eval"]["after"]["mean"] == 1.0


def test_resumed_run_names_no_report_that_was_not_written(folder):
    done = mappa(folder, "train", "--resume", "runs/first", "train.iterations=2")
    assert done.returncode == 0, done.stderr
    assert "2 iterations, 8 verdicts" in done.stdout and "report.html" not in done.stdout
    assert not (folder / "runs/first/report.html").exists()


def test_kl_penalty_of_an_estimator_is_accepted_without_a_trained_policy(folder):
    words = ("estimator.options.kl_coef=0.1", "estimator.use=reinforce_plus_plus", "train.iterations=1")
    done = mappa(folder, "train", "--plugin", "doubles", "--name", "penalty", "--quiet", *words)
    assert done.returncode == 0, done.stderr


def test_a_policy_with_weights_needs_the_engine_and_says_what_brings_it(folder):
    words = ("policies.default.kind=full", "policies.default.model=some/model")
    done = mappa(folder, "train", "--plugin", "doubles", *words)
    assert done.returncode == 2
    assert "engine.use: no engine is called 'local'. It comes with mappa-engine: pip install \"mappa-engine\"" in (
        done.stderr
    )
    assert "loss.use: no loss is called 'ppo'" in done.stderr and "Traceback" not in done.stderr
