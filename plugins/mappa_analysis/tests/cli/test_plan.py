"""`mappa plan`: what people read, what scripts read, and what is wrong input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mappa_core.cli.main import main
from mappa_core.plugins import load_plugins
from mappa_core.training.run import Run

MATHCHAT = ("plan", "--plugin", "mathchat", "eval.problems=8")
EIGHT = ("--gpus", "8", "--gpu-memory", "80", "engine={use: cluster, options: {}}")


@pytest.fixture(scope="module")
def run(module_site, tmp_path_factory) -> Path:
    """A short run of the team that doubles numbers."""
    module_site.install("acme_doubles")
    root = tmp_path_factory.mktemp("runs")
    return (
        Run.from_recipe(
            "doubles/tiny", f"run.root={root}", registry=load_plugins(only=("analysis", "doubles", "engine", "sandbox"))
        )
        .train()
        .folder
    )


def lines_of(capsys, *arguments) -> list[str]:
    assert main(arguments) == 0, capsys.readouterr().err
    return capsys.readouterr().out.splitlines()


def row(lines, name) -> list[str]:
    (line,) = [line for line in lines if line.strip().startswith(name)]
    return line.replace(name, "").split("  ")


def test_a_plan_names_agents_memory_and_work(capsys):
    lines = lines_of(capsys, *MATHCHAT)
    assert lines[0] == "mathchat/tiny"
    assert any("problem_solver" in line and "full" in line and "mathchat-rules" in line for line in lines)
    assert [cell.strip() for cell in row(lines, "weights") if cell.strip()] == ["1.0 MB"] * 3
    shown = [cell.strip() for cell in row(lines, "trajectories") if cell.strip()]
    assert shown == ["32", "1,920", "8", "1,936"]
    assert "≤ 128" in [cell.strip() for cell in row(lines, "actions")]
    assert "the run: 60 iterations, 2 evaluations; cost $0.00; wall time not known" in lines
    assert lines[-1].startswith("without a run figures are bounds")


def test_a_plan_by_a_run_knows_hours_and_no_bounds(run, capsys):
    lines = lines_of(capsys, "plan", "--plugin", "doubles", "--from", str(run), "train.iterations=9")
    text = "\n".join(lines)
    assert "≤" not in text and "without a run" not in text and "wall time about " in text
    assert "memory is not known: the engine makes no plan" in text


def test_a_cluster_is_mapped(capsys):
    text = "\n".join(lines_of(capsys, *MATHCHAT, *EIGHT))
    assert "learners, 8 ranks" in text and "gpu0-7" in text
    assert "5 of 8 GPUs learn and do not sample" in text


def test_nodes_are_named_where_there_are_several(capsys):
    text = "\n".join(lines_of(capsys, *MATHCHAT, *EIGHT, "--nodes", "2"))
    assert "learners, 16 ranks" in text and "memory of node2 itself" in text


def test_scripts_get_numbers_and_nulls(run, capsys):
    (line,) = lines_of(capsys, "plan", "--plugin", "doubles", "--from", str(run), "--json")
    shown = json.loads(line)
    assert shown["recipe"] == "doubles/tiny"
    assert shown["iteration"]["trajectories"] == {"value": 8.0, "at_most": False}
    assert shown["run"]["usd"] == {"value": 0.0, "at_most": False} and shown["hours"]["value"] > 0
    (line,) = lines_of(capsys, *MATHCHAT, *EIGHT, "--json")
    shown = json.loads(line)
    assert shown["iteration"]["prompt_tokens"] is None and shown["hours"] is None
    assert shown["memory"]["placement"]["slots"]["node1 gpu0"]["bytes"] == 80_000_000_000
    assert shown["memory"]["placement"]["samplers"][0]["engines"] == [["node1 gpu0"]]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--gpus", "8"), "--gpus N and --gpu-memory GB go together"),
        (("--gpu-memory", "80"), "--gpus N and --gpu-memory GB go together"),
        (("--gpus", "0", "--gpu-memory", "80"), "0 is not in the range"),
        (("--from", "nowhere"), "nowhere"),
        (("train.iteratons=3",), "train.iteratons: not a setting"),
        (
            (*EIGHT, "engine.options.max_model_len=9999"),
            "engine.options.max_model_len=9999 is longer than the window of",
        ),
        ((*EIGHT, "engine.options.kv_cache_mb=80000"), "the policies do not fit: node1 gpu0 has 80.0 GB"),
    ],
)
def test_wrong_input_is_exit_code_2(arguments, said, capsys):
    assert main([*MATHCHAT, *arguments]) == 2
    assert said in capsys.readouterr().err


def test_it_needs_no_key_and_no_torch(monkeypatch):
    import subprocess
    import sys

    for name in ("GEMINI_API_KEY", "GOOGLE_API_KEY", "OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    program = (
        "import sys\nfrom mappa_core.cli import main\n"
        "code = main(['plan', '--plugin', 'mathchat', 'coach={use: gemini, options: {model: m}}'])\n"
        "sys.exit(code or ('imported torch' if 'torch' in sys.modules else 0))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "calls of coaches" in done.stdout
