"""Eval logs that inspect_ai writes, read by itself."""

from __future__ import annotations

from pathlib import Path

import inspect_ai
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import match
from inspect_ai.solver import generate

from mappa.look.importing import LogMapping, import_logs
from mappa.runs import RunReader
from mappa_core.plugins import load_plugins

LONG = "the capital of France is what everybody asks for; " * 100
"""Longer than what the library keeps within a message."""


def answer(text: str) -> ModelOutput:
    # Its usage is given: else the library counts tokens by a file that it downloads.
    output = ModelOutput.from_content("mockllm/model", text)
    output.usage = ModelUsage(input_tokens=5, output_tokens=7, total_tokens=12)
    return output


def test_a_log_that_the_library_wrote_becomes_a_run(tmp_path: Path) -> None:
    samples = [Sample(id="paris", input=LONG, target="Paris"), Sample(id="lima", input="Peru?", target="Lima")]
    model = get_model("mockllm/model", custom_outputs=[answer("Paris"), answer("Quito")])
    task = inspect_ai.Task(dataset=samples, solver=generate(), scorer=match("any"))
    (log,) = inspect_ai.eval(task, model=model, log_dir=str(tmp_path / "logs"), display="none", max_connections=1)
    assert log.status == "success" and log.location.endswith(".eval")
    made = import_logs(load_plugins(only=("look",)), [tmp_path / "logs"], LogMapping(), root=tmp_path, name="run")
    with RunReader(made.folder) as reader:
        plays = {one.task.id: one for one in (reader.trajectory(row.id) for row in reader.trajectories)}
    assert plays["paris"].task.prompt == LONG
    assert {name: play.outcome["correct"] for name, play in plays.items()} == {"paris": 1.0, "lima": 0.0}
    assert plays["lima"].steps[0].reply.content == "Quito"
