"""The recipes for one GPU, trained for an iteration on CPUs: with their model in two layers, and short actions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from models import QWEN2_5_1_5B

from mappa.runs import RunReader
from mappa.sessions import Run

pytestmark = pytest.mark.timeout(1200)


@pytest.mark.parametrize("name", ["small", pytest.param("small-full", marks=pytest.mark.soak)])
def test_a_recipe_for_one_gpu_trains_on_its_shape(name: str, model_of, tmp_path: Path) -> None:
    """`small-full` has the same shape here: the published ones differ in width and depth alone."""
    problems = ({"problem": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(8))
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text("".join(f"{json.dumps(problem)}\n" for problem in problems))
    run = Run.from_recipe(
        f"mathchat/{name}",
        f"policies.default.model={model_of(QWEN2_5_1_5B)}",
        f"tasks={{use: file, options: {{path: {tasks}, prompt: problem, reference: answer}}}}",
        "coach={use: mathchat-rules, max_missing: 1.0}",
        "train={iterations: 1, prompts: 2, warmup_iterations: 0, micro_tokens: 1024}",
        "engine.options={max_model_len: 2048, packed_tokens: 1024}",
        "sampling={max_tokens: 12, concurrency: 4}",
        "eval={problems: 2, samples: 1}",
        "checkpoint.best=false",
        f"run.root={tmp_path / 'runs'}",
    )
    assert run.check().startswith("ready: problem_solver")
    folder = run.train().folder
    with RunReader(folder) as reader:
        (report,) = reader.iterations
        published = reader.events("published")
    assert set(report.policies) == {"problem_solver", "code_executor", "verifier"}
    assert all(metrics["rows"] >= 4 and metrics["skipped"] == 0 for metrics in report.policies.values())
    assert max(metrics["mismatch_max"] for metrics in report.policies.values()) < 1e-3
    assert published, "no weights were handed on"
    written = {path.parent.name for path in folder.glob("checkpoints/*/policies/*/weights.safetensors")}
    assert written == set(report.policies)
