"""`mappa plan`: what people read, what scripts read, and what is wrong input."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace

import pytest

from mappa.cli import main
from mappa.runs import RunReader
from mappa.sessions import Run
from mappa.testing import load_plugins
from mappa_engine.node import this_node

MATHCHAT = ("plan", "--plugin", "mathchat", "eval.problems=8")
EIGHT = ("--gpus", "8", "--gpu-memory", "80", "engine={use: cluster, options: {}}")


@pytest.fixture(scope="module")
def run(module_site, tmp_path_factory) -> Path:
    """A short run of the team that doubles numbers."""
    module_site.install("acme_doubles")
    root = tmp_path_factory.mktemp("runs")
    return (
        Run.from_recipe(
            "doubles/tiny", f"run.root={root}", registry=load_plugins(only=("look", "doubles", "engine", "sandbox"))
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
    assert lines[-1].startswith("without --from RUN figures are bounds")


def test_a_teacher_that_no_agent_plays_is_part_of_the_memory(capsys):
    mentor = "policies.mentor={model: 'package:mappa_engine/models/tiny', kind: frozen}"
    lines = lines_of(capsys, *MATHCHAT, mentor, "estimator={use: distill, options: {policy: mentor, reason: false}}")
    (header,) = [line.split() for line in lines if line.strip().startswith("memory ")]
    assert header == ["memory", "problem_solver", "code_executor", "verifier", "mentor", "shared"]
    assert [cell.strip() for cell in row(lines, "gradients") if cell.strip()] == ["1.0 MB"] * 3
    assert [cell.strip() for cell in row(lines, "reference") if cell.strip()] == ["1.6 MB"]
    assert lines[-1].startswith("mentor only teaches")


def test_a_plan_by_a_run_knows_hours_and_no_bounds(run, capsys):
    lines = lines_of(capsys, "plan", "--plugin", "doubles", "--from", str(run), "train.iterations=9")
    text = "\n".join(lines)
    assert "≤" not in text and "without --from" not in text and "wall time about " in text
    assert "memory is not known: the engine makes no plan" in text


def test_a_cluster_is_mapped(capsys):
    text = "\n".join(lines_of(capsys, *MATHCHAT, *EIGHT))
    assert "learners, 8 ranks" in text and "gpu0-7" in text
    assert "at most 3 of 3 samplers on a GPU" in text
    assert "5 of 8 GPUs learn and do not sample" in "\n".join(
        lines_of(capsys, *MATHCHAT, *EIGHT, "engine.options.samplers=1")
    )


def test_the_disk_that_checkpoints_take_is_told_with_what_is_free(capsys, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=8_000_000, total=9_000_000))
    text = "\n".join(lines_of(capsys, *MATHCHAT, *EIGHT))
    # Three policies of 252,960 numbers and two moments each, float32; two are kept and one is being written.
    assert re.search(r"checkpoints: [\d.]+ MB = 3 of [\d.]+ MB, 2 kept and one being written; 8.0 MB are free", text)
    size = float(re.search(r"3 of ([\d.]+) MB", text)[1])
    assert size == pytest.approx(3 * 12 * 240_192 / 1e6, rel=0.1)
    here = "\n".join(lines_of(capsys, *MATHCHAT, "engine={use: cluster, options: {}}"))
    assert "checkpoints do not fit the disk of runs" in here


def test_a_node_with_too_little_memory_of_its_own_is_refused(capsys):
    assert main([*MATHCHAT, *EIGHT, "--memory", "16"]) == 2
    assert "node1 itself has 16.0 GB of memory, of which 14.7 GB can be used" in capsys.readouterr().err


def test_plan_names_all_missing_requirements_at_once(capsys, monkeypatch):
    monkeypatch.delenv("GEMINI_API_KEY", raising=False)
    text = "\n".join(
        lines_of(
            capsys, *MATHCHAT, "coach={use: gemini, options: {model: m}}", "engine={use: cluster, options: {}}",
            "tasks={use: file, options: {path: nowhere.jsonl}}",
        )
    )  # fmt: skip
    missing = text.partition("before it can start here:")[2]
    assert "nowhere.jsonl: there is no such file" in missing and "GEMINI_API_KEY is not set" in missing
    assert "no GPU is seen here; it fits 1 GPU of 24 GB" in text or "gpu0" in text


def test_a_setting_that_every_agent_overrides_is_warned_of(capsys):
    text = "\n".join(lines_of(capsys, *MATHCHAT, "sampling.max_tokens=1024"))
    assert "sampling.max_tokens (command line) has no effect: every agent has an agents.AGENT.max_tokens" in text
    assert "has no effect" not in "\n".join(lines_of(capsys, *MATHCHAT, "sampling.temperature=0.5"))
    some = ("sampling.max_tokens=1024", "agents.verifier.max_tokens=null")
    assert "has no effect" not in "\n".join(lines_of(capsys, *MATHCHAT, *some))


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
    assert shown["memory"]["placement"]["samplers"][0]["engines"] == [[f"node1 gpu{number}"] for number in range(8)]
    assert shown["memory"]["placement"]["options"]["zero"] == 2 and shown["checkpoints"]["kept"] == 2


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


def test_plan_needs_no_key_and_no_torch(monkeypatch):
    import subprocess
    import sys

    for name in ("GEMINI_API_KEY", "GOOGLE_API_KEY", "OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    program = (
        "import sys\nfrom mappa.cli import main\n"
        "code = main(['plan', '--plugin', 'mathchat', 'coach={use: gemini, options: {model: m}}'])\n"
        "sys.exit(code or ('imported torch' if 'torch' in sys.modules else 0))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "calls of coaches" in done.stdout


def test_a_plan_by_a_run_says_what_it_took_at_its_peak(tmp_path, capsys):
    settings = ("engine.use=local", "train.iterations=1", "train.prompts=2", "eval.problems=2")
    made = main(["train", "--plugin", "mathchat", "--quiet", f"run.root={tmp_path}", "run.name=short", *settings])
    assert made == 0, capsys.readouterr().err
    folder = tmp_path / "short"
    with RunReader(folder) as reader:
        *_, event = reader.events("memory")
    # What this process holds, as the kernel counts it; torch alone is more than 100 MB.
    assert event.body["iteration"] == 1 and event.body["peak"] > 100_000_000
    capsys.readouterr()
    took = f"{folder} took {event.body['peak'] / 1e9:.1f} GB at its peak, with "
    text = "\n".join(lines_of(capsys, "plan", "--plugin", "mathchat", "--from", str(folder), *settings))
    assert f"{took}these settings" in text
    other = (*settings, "train.micro_tokens=512")
    text = "\n".join(lines_of(capsys, "plan", "--plugin", "mathchat", "--from", str(folder), *other))
    assert f"{took}other settings (train.micro_tokens)" in text


def test_what_does_not_fit_this_machine_is_not_ready(capsys, monkeypatch):
    found = replace(this_node(), memory=600_000_000, gpus=())
    monkeypatch.setattr("mappa_engine.local.engine.this_node", lambda: found)
    (line,) = [line for line in lines_of(capsys, *MATHCHAT) if line.startswith("it ")]
    assert line == "it does not fit this machine, which has 600.0 MB"
    assert main(["train", "--plugin", "mathchat", "--dry-run"]) == 2
    (said,) = [line for line in capsys.readouterr().err.splitlines() if "of memory" in line]
    assert "this machine has 600.0 MB of memory, and about " in said and "set train.micro_tokens to less" in said


def test_a_start_is_refused_where_the_machine_cannot_hold_the_policies(capsys, tmp_path):
    """A model of 10^13 weights, by the header of its file: nothing of it is loaded, and no run begins."""
    tiny = Path(str(files("mappa_engine") / "models/tiny"))
    huge = tmp_path / "huge"
    huge.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (huge / name).write_bytes((tiny / name).read_bytes())
    size = 2 * 10**13
    tensor = {"dtype": "F16", "shape": [10**7, 10**6], "data_offsets": [0, size]}
    header = json.dumps({"model.embed_tokens.weight": tensor}).encode()
    (huge / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    start = ("train", "--plugin", "mathchat", f"policies.default.model={huge}", f"run.root={tmp_path / 'runs'}")
    assert main([*start, "engine.use=local"]) == 2
    said = capsys.readouterr().err
    assert "of memory, and the policies hold " in said and "use fewer or smaller ones" in said
    assert not (tmp_path / "runs").exists()
