"""`mappa export`: agents of a checkpoint as model folders."""

import asyncio
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from mappa.cli import main
from mappa.runs import RunFolder
from mappa.store.checkpoint import POLICIES, PolicyEntry
from mappa_core import Advantages, Sampling
from mappa_core.engine import Lora, PolicySpec, TrainSection
from mappa_engine.local import LocalEngine
from mappa_engine.losses import PPOLoss
from mappa_engine.options import LocalOptions, PPOOptions

TRAIN = TrainSection(iterations=10, learning_rate=1e-2)
PROMPT = np.arange(5, 25, dtype=np.int32)
AGENTS = {"solver": "solver", "checker": "team", "writer": "team", "judge": "judge"}


@pytest.fixture(scope="module")
def run(qwen3, kit, tmp_path_factory):
    """A run with a full policy, an adapter that two agents share and a frozen policy, and what they sampled."""
    return asyncio.run(trained(qwen3, kit, tmp_path_factory.mktemp("runs")))


async def trained(model, kit, root):
    specs = (
        PolicySpec(name="solver", model=model, value_head=True),
        PolicySpec(name="team", model=model, kind="lora", lora=Lora(rank=4, alpha=8.0), value_head=True),
        PolicySpec(name="judge", model=model, kind="frozen"),
    )
    engine = LocalEngine(LocalOptions(device="cpu"))
    await engine.open(specs, TRAIN, seed=0)
    rows = kit.experience(kit.rows(4) + kit.rows(4, policy="team"), ("solver", "team"))
    scored = await engine.score(rows)
    advantages = np.random.default_rng(0).normal(size=len(rows.tokens)).astype(np.float32)
    await engine.update(scored, Advantages(advantages=advantages), PPOLoss(PPOOptions()), 0.0)
    sampled = {spec.name: await engine.sampler(spec.name).sample(PROMPT, Sampling(max_tokens=12)) for spec in specs}
    with (
        RunFolder.create(root, "run", plugin="p", recipe="r", config="seed: 1\n") as folder,
        folder.checkpoints.new_checkpoint(
            3,
            seed=0,
            coach={},
            estimator={},
            policies={spec.name: PolicyEntry.of(spec) for spec in specs if spec.trained},
            agents=AGENTS,
            prompts={"solver": "Solve it.", "nobody": "Rest."},
        ) as inside,
    ):
        await engine.save(inside / POLICIES)
    await engine.close()
    return root / "run", sampled


def gap(model, completion) -> float:
    """Largest difference of the model's log-probabilities to those of what was sampled."""
    ids = torch.tensor(np.concatenate([completion.prompt_tokens, completion.tokens]).astype(np.int64))
    with torch.inference_mode():
        logprobs = torch.log_softmax(model(ids[None]).logits[0].float(), -1)
    start = len(completion.prompt_tokens)
    found = logprobs[np.arange(start - 1, len(ids) - 1), ids[start:]].numpy()
    return float(np.abs(found - completion.logprobs).max())


def test_export_equals_the_sampled_policy(run, qwen3, tmp_path, capsys):
    folder, sampled = run
    assert main(["export", str(folder), "--out", str(tmp_path / "out")]) == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["checker", "solver", "writer"]
    assert "solver" in capsys.readouterr().out
    assert [path.parent.name for path in (tmp_path / "out").glob("*/prompt.md")] == ["solver"]
    assert (tmp_path / "out/solver/prompt.md").read_text() == "Solve it."
    solver = AutoModelForCausalLM.from_pretrained(tmp_path / "out" / "solver")
    assert gap(solver, sampled["solver"]) < 1e-4 < 1e-2 < gap(solver, sampled["team"])
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out" / "solver")
    assert tokenizer.chat_template and tokenizer.eos_token == "<|im_end|>"
    base = AutoModelForCausalLM.from_pretrained(qwen3)
    assert gap(base, sampled["judge"]) < 1e-4
    adapter = PeftModel.from_pretrained(base, tmp_path / "out" / "checker")
    assert gap(adapter, sampled["team"]) < 1e-4
    assert json.loads((tmp_path / "out/checker/adapter_config.json").read_text())["base_model_name_or_path"] == qwen3


def test_merged_adapter_is_a_model(run, tmp_path):
    folder, sampled = run
    words = ["export", f"{folder}@3", "--to", "hf", "--agent", "writer", "--merged", "--out", str(tmp_path / "out")]
    assert main(words) == 0
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["writer"]
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "out" / "writer")
    assert merged.dtype == torch.float32 and not any("lora" in name for name in merged.state_dict())
    assert gap(merged, sampled["team"]) < 1e-4
    assert main([*words[:-1], str(tmp_path / "half"), "--dtype", "bfloat16"]) == 0
    half = AutoModelForCausalLM.from_pretrained(tmp_path / "half" / "writer")
    assert half.dtype == torch.bfloat16
    rounded = {name: tensor.bfloat16() for name, tensor in merged.state_dict().items()}
    assert all(torch.equal(tensor, rounded[name]) for name, tensor in half.state_dict().items())


def test_agent_name_is_not_a_path(run, tmp_path, capsys):
    folder = Path(shutil.copytree(run[0], tmp_path / "run"))
    manifest = folder / "checkpoints" / "000003" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"writer":', '"../writer":'))
    out = tmp_path / "deep" / "out"
    assert main(["export", str(folder), "--agent", "../writer", "--out", str(out)]) == 0
    assert [path.name for path in (*out.parent.iterdir(), *out.iterdir())] == ["out", "_._writer"]
    assert f"../writer  {out / '_._writer'}" in capsys.readouterr().out


def test_unwritable_target_is_an_error(run, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["export", str(run[0]), "--out", str(tmp_path / "file")]) == 2
    assert "cannot be written: File exists: a file stands in its place" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["RUN@7"], "no checkpoint of iteration 7; checkpoints of other iterations: 3"),
        (["RUN@best"], "did not keep its best checkpoint"),
        (["nowhere"], "there is no run nowhere"),
        (["RUN", "--agent", "cook"], "--agent cook: "),
        (["RUN", "--agent", "judge"], "its policy 'judge' was not trained"),
        (["RUN/judge@last"], "no agent of it has a trained policy 'judge'; there are solver, team"),
    ],
)
def test_failed_export_leaves_no_folder(run, tmp_path, capsys, words, message):
    words = [word.replace("RUN", str(run[0])) for word in words]
    assert main(["export", *words, "--out", str(tmp_path / "out")]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out").exists()


def test_existing_folder_is_not_overwritten(run, tmp_path, capsys):
    (tmp_path / "out" / "solver").mkdir(parents=True)
    assert main(["export", str(run[0]), "--out", str(tmp_path / "out")]) == 2
    assert "exists already" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["solver"]
