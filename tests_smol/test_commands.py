"""The model in whole runs, as people start them: asked, taught, trained, killed, exported, and played from outside."""

from __future__ import annotations

import hashlib
import json
import time

import numpy as np
import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from mappa.runs import RunReader

from .conftest import LOCAL, MODEL, SHORT, SMOL, TOKENS

AGENTS = tuple(TOKENS)
AGENT = """
import openai


def solve(session):
    client = openai.OpenAI(base_url=session.base_url, api_key=session.api_key)
    messages = [{"role": "user", "content": session.task.prompt + "\\n\\nEnd with the answer in \\\\boxed{}."}]
    reply = client.chat.completions.create(model="problem_solver", messages=messages, logprobs=True)
    told = reply.choices[0].logprobs.content
    with open("heard.txt", "a") as heard:
        print(reply.id, *(each.token.removeprefix("token_id:") for each in told), file=heard)
    return reply.choices[0].message.content
"""
OUTSIDE = f"""
tasks: {{use: stories, options: {{train: 64, eval: 16}}}}
workflow:
  options:
    function: smol_agent:solve
    agents:
      problem_solver: {{brief: Solves word problems.}}
agents: {{problem_solver: {{max_tokens: 24}}}}
policies:
  default: {{model: "{MODEL}", kind: lora, lora: {{rank: 16, alpha: 32.0}}, from: "runs/taught/problem_solver@last"}}
coach: {{use: mathchat-rules, reference_for: [problem_solver]}}
estimator: {{use: rloo}}
train: {{iterations: 1, prompts: 2, samples: 2, learning_rate: 1.0e-4, entropy_coef: 0.01, correction: {{kind: none}}}}
eval: {{problems: 1}}
"""


@pytest.fixture(scope="module")
def trained(place, mappa, taught):
    """Two iterations on the engine `local`, from what was taught."""
    words = ("run.name=trained", "train.iterations=2", f"policies.default.from={taught}@last")
    mappa("train", *SMOL, "--quiet", *words, *SHORT, *LOCAL)
    return place / "runs" / "trained"


def reports(folder):
    with RunReader(folder) as reader:
        return list(reader.iterations)


def steps_of(folder, split):
    with RunReader(folder) as reader:
        return [step for row in reader.trajectories.where(split=split) for step in reader.trajectory(row.id).steps]


def weights(folder, iteration):
    files = sorted((folder / "checkpoints" / f"{iteration:06d}" / "policies").rglob("*.safetensors"))
    return {f"{file.parent.name}/{file.name}": hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def test_a_probe_says_that_there_is_nothing_to_amplify(mappa):
    probed = json.loads(mappa("eval", *SMOL, "--probe", "2", "--json", *SHORT, *LOCAL))["probe"]
    assert probed["team"]["finding"] == "nothing to amplify"
    assert probed["agents"].keys() == set(AGENTS)


def test_what_was_taught_is_less_surprising_after_each_epoch(taught):
    first, second = (report.policies for report in reports(taught))
    for agent in AGENTS:
        assert first[agent]["held_out_loss"] > second[agent]["held_out_loss"] > 0.0


def test_an_iteration_on_local_updates_every_agent(trained):
    for report in reports(trained):
        assert report.failed == 0 and report.rollouts == 4
        for agent in AGENTS:
            assert report.policies[agent]["grad_norm"] > 0.0 and report.policies[agent]["skipped"] == 0.0
    before, after = weights(trained, 1), weights(trained, 2)
    assert before.keys() == after.keys() and not set(before.values()) & set(after.values())


def test_killed_and_resumed_it_is_equal_bit_for_bit(place, start, mappa, taught, trained):
    words = ("run.name=killed", "train.iterations=2", f"policies.default.from={taught}@last")
    folder = place / "runs" / "killed"
    with start("train", *SMOL, "--quiet", *words, *SHORT, *LOCAL) as process:
        while process.poll() is None and not (folder / "checkpoints" / "000001").exists():
            time.sleep(0.1)
        process.kill()
    assert not (folder / "checkpoints" / "000002").exists()
    mappa("train", "--resume", str(folder), "--quiet")
    assert weights(folder, 2) == weights(trained, 2)
    assert played(folder) == played(trained)


def played(folder):
    return [(step.agent, step.completion.text) for split in ("train", "eval") for step in steps_of(folder, split)]


def test_peft_loads_an_exported_adapter(place, mappa, model, trained):
    mappa("export", str(trained), "--agent", "verifier", "--out", "adapters")
    (config,) = (place / "adapters").rglob("adapter_config.json")
    loaded = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32), config.parent
    ).eval()
    with RunReader(trained) as reader:
        rows = reader.trajectories.where(split="eval", iteration=2)
        steps = [step for row in rows for step in reader.trajectory(row.id).steps if step.agent == "verifier"]
    assert steps
    for sampled in (step.completion for step in steps):
        ids = torch.tensor([[*sampled.prompt_tokens.tolist(), *sampled.tokens.tolist()]])
        count = len(sampled.tokens)
        with torch.inference_mode():
            found = torch.log_softmax(loaded(input_ids=ids).logits[0, -count - 1 : -1], -1)
        told = found.gather(1, ids[0, -count:, None])[:, 0].numpy()
        np.testing.assert_allclose(told, sampled.logprobs, rtol=0, atol=1e-3)


def test_a_team_of_openais_client_is_trained(place, mappa, taught):
    (place / "smol_agent.py").write_text(AGENT)
    (place / "outside.yaml").write_text(OUTSIDE)
    mappa("train", "--recipe", "gateway/gateway", "--config", "outside.yaml", "--quiet", "run.name=outside", *LOCAL)
    folder = place / "runs" / "outside"
    (report,) = reports(folder)
    assert report.policies["problem_solver"]["grad_norm"] > 0.0
    heard = dict(line.split(" ", 1) for line in (place / "heard.txt").read_text().splitlines())
    steps = steps_of(folder, "train")
    assert len(steps) == 4
    for step in steps:
        assert heard[f"chatcmpl-{step.id}"].split() == [str(token) for token in step.completion.tokens]


def test_an_iteration_on_the_cluster_updates_every_agent(place, mappa, taught):
    pytest.importorskip("vllm", reason="`make test-smol` runs where vLLM, Ray and DeepSpeed are installed")
    words = ("run.name=cluster", "train.iterations=1", f"policies.default.from={taught}@last", "engine.use=cluster")
    mappa("train", *SMOL, "--quiet", *words, "train.correction.kind=truncate", *SHORT)
    (report,) = reports(place / "runs" / "cluster")
    assert report.failed == 0 and report.rollouts == 4
    for agent in AGENTS:
        metrics = report.policies[agent]
        assert metrics["grad_norm"] > 0.0 and metrics["skipped"] == 0.0
        # nats a token between vLLM's log-probabilities and the learner's
        assert metrics["mismatch_kl"] < 1e-3
