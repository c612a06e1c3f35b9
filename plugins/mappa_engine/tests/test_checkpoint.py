"""Publishing, saving, loading, exporting."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from mappa_core.config.schema import TrainSection
from mappa_core.errors import EngineError, RunError
from mappa_core.experience import Advantages
from mappa_core.protocols import PolicySpec
from mappa_core.records import Sampling
from mappa_engine.checkpoint import write_tensors
from mappa_engine.losses import PPOLoss
from mappa_engine.options import PPOOptions

TRAIN = TrainSection(iterations=10, learning_rate=1e-2, minibatch_rows=3)
PROMPT = np.arange(5, 25, dtype=np.int32)


async def learn(engine, kit, iteration: int) -> str:
    """One iteration on rows that the engine samples itself; the checksum of the weights after it."""
    sampler = engine.sampler("solver")
    found = await asyncio.gather(
        *(sampler.sample(PROMPT[: 5 + i], Sampling(max_tokens=12, seed=100 * iteration + i)) for i in range(7))
    )
    rows = [kit.Row(one.prompt_tokens, one.tokens, one.logprobs, trajectory=i) for i, one in enumerate(found)]
    scored = await engine.score(kit.experience(rows))
    given = np.random.default_rng(iteration).normal(size=len(scored.tokens)).astype(np.float32)
    targets = None if scored.values is None else given
    await engine.update(
        scored, Advantages(advantages=given, value_targets=targets), PPOLoss(PPOOptions()), iteration / 10
    )
    return (await engine.publish())["solver"].checksum


async def test_publishing_counts_versions_of_what_is_trained(qwen3, opened, kit):
    specs = [PolicySpec(name="solver", model=qwen3), PolicySpec(name="judge", model=qwen3, kind="frozen")]
    engine = await opened(qwen3, train=TRAIN, policies=specs)
    first = await engine.publish()
    await learn(engine, kit, 0)
    third = await engine.publish()
    assert (first["solver"].version, third["solver"].version) == (1, 3)
    assert (first["judge"].version, third["judge"].version) == (0, 0)
    assert first["solver"].checksum == first["judge"].checksum == third["judge"].checksum
    assert first["solver"].checksum != third["solver"].checksum


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_two_runs_and_a_resumed_one_are_bit_equal(model, opened, kit, tmp_path, dtype):
    specs = [PolicySpec(name="solver", model=model, value_head=True)]
    options = {"train": TRAIN, "deterministic": True, "policies": specs, "dtype": dtype}
    one, other = await opened(model, **options), await opened(model, **options)
    expected = [await learn(one, kit, iteration) for iteration in range(4)]
    assert [await learn(other, kit, iteration) for iteration in range(2)] == expected[:2]
    await other.save(tmp_path / "policies")
    resumed = await opened(model, **options)
    await resumed.load(tmp_path / "policies")
    assert [await learn(resumed, kit, iteration) for iteration in (2, 3)] == expected[2:]
    assert (await resumed.publish())["solver"].version == 5


async def test_a_checkpoint_is_loaded_for_sampling(qwen3, opened, kit, tmp_path):
    engine = await opened(qwen3, train=TRAIN)
    await learn(engine, kit, 0)
    await engine.save(tmp_path / "policies")
    sampling = await opened(qwen3)
    await sampling.load(tmp_path / "policies")
    ask = Sampling(max_tokens=20, temperature=0.0)
    found, expected = [await one.sampler("solver").sample(PROMPT, ask) for one in (sampling, engine)]
    assert found.tokens.tolist() == expected.tokens.tolist()
    assert found.versions == expected.versions


async def test_a_checkpoint_of_other_policies_is_refused(qwen3, llama, opened, tmp_path):
    engine = await opened(qwen3, train=TRAIN)
    await engine.save(tmp_path / "policies")
    renamed = await opened(qwen3, train=TRAIN, policies=[PolicySpec(name="coder", model=qwen3)])
    with pytest.raises(RunError, match="no policy 'coder'"):
        await renamed.load(tmp_path / "policies")
    other = await opened(llama, train=TRAIN)
    with pytest.raises(RunError, match="weights are not those of"):
        await other.load(tmp_path / "policies")


async def test_a_checkpoint_without_a_learner_cannot_be_trained_on(qwen3, opened, tmp_path):
    await (await opened(qwen3)).save(tmp_path / "policies")
    with pytest.raises(RunError, match="without a learner"):
        await (await opened(qwen3, train=TRAIN)).load(tmp_path / "policies")


async def test_an_exported_folder_is_an_ordinary_model(model, opened, kit, tmp_path):
    engine = await opened(model, train=replace(TRAIN, minibatch_rows=None))
    await learn(engine, kit, 0)
    await engine.save(tmp_path / "saved")
    solver = PolicySpec(name="solver", model=model)
    engine.export(solver, tmp_path / "saved/solver", tmp_path / "model", merged=False, dtype=None)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "model").eval()
    assert plain.config._attn_implementation == "sdpa"
    found = await engine.sampler("solver").sample(PROMPT, Sampling(max_tokens=1, temperature=0.0))
    with torch.inference_mode():
        logprobs = torch.log_softmax(plain(input_ids=torch.from_numpy(PROMPT)[None].long()).logits[0, -1], -1)
    assert logprobs.max().item() == pytest.approx(float(found.logprobs[0]), abs=1e-5)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert tokenizer.chat_template == kit.tokenizer().chat_template
    again = await opened(str(tmp_path / "model"))
    assert (await again.sampler("solver").sample(PROMPT, Sampling(max_tokens=1, temperature=0.0))).tokens.tolist() == (
        found.tokens.tolist()
    )


async def test_an_unknown_policy_is_named(qwen3, opened):
    engine = await opened(qwen3)
    with pytest.raises(EngineError, match=r"'coder'.*solver"):
        engine.sampler("coder")


def test_a_failing_storage_is_told_by_the_error_of_the_system(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"gone/weights\.safetensors"):
        write_tensors({"a": torch.zeros(3)}, tmp_path / "gone" / "weights.safetensors")
