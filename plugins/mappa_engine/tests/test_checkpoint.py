"""Publishing, saving, loading, exporting."""

import asyncio
import hashlib
import os
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from mappa_core import Advantages, RunError, Sampling
from mappa_core.engine import EngineError, Lora, PolicySpec, TrainSection
from mappa_engine.checkpoint import StoredTensors, write_tensors
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
    rows = [
        kit.Row(completion.prompt_tokens, completion.tokens, completion.logprobs, trajectory=i)
        for i, completion in enumerate(found)
    ]
    scored = await engine.score(kit.experience(rows))
    given = np.random.default_rng(iteration).normal(size=len(scored.tokens)).astype(np.float32)
    targets = None if scored.values is None else given
    await engine.update(
        scored, Advantages(advantages=given, value_targets=targets), PPOLoss(PPOOptions()), iteration / 10
    )
    return (await engine.publish())["solver"].checksum


async def test_publish_counts_versions_of_trained_policies(qwen3, opened, kit):
    specs = [PolicySpec(name="solver", model=qwen3), PolicySpec(name="judge", model=qwen3, kind="frozen")]
    engine = await opened(qwen3, train=TRAIN, policies=specs)
    first = await engine.publish()
    await learn(engine, kit, 0)
    third = await engine.publish()
    assert (first["solver"].version, third["solver"].version) == (1, 3)
    assert (first["judge"].version, third["judge"].version) == (0, 0)
    assert first["solver"].checksum == first["judge"].checksum == third["judge"].checksum
    assert first["solver"].checksum != third["solver"].checksum


async def test_a_checksum_covers_evenly_spaced_numbers_of_every_tensor(qwen3, opened, monkeypatch):
    monkeypatch.setattr("mappa_engine.local.policy.CHECKED_NUMBERS", 10)
    engine = await opened(qwen3, train=TRAIN)
    weight = engine._policies["solver"].model.get_input_embeddings().weight
    first = (await engine.publish())["solver"].checksum
    step = -(-weight.numel() // 10)
    changed = []
    for place in (1, step - 1, 0, 9 * step, step):
        with torch.no_grad():
            weight.view(-1)[place] += 1.0
        changed.append((await engine.publish())["solver"].checksum)
    assert changed[0] == changed[1] == first
    assert len({first, *changed[2:]}) == 4


@pytest.mark.parametrize("kind", ["full", "lora"])
async def test_gradient_checkpointing_changes_no_weights(qwen3, opened, kit, tmp_path, kind):
    lora = Lora(rank=4, alpha=8.0) if kind == "lora" else None
    specs = [PolicySpec(name="solver", model=qwen3, kind=kind, lora=lora)]
    checksums, passes = [], []
    for recomputed in (False, True):
        engine = await opened(qwen3, train=TRAIN, policies=specs, gradient_checkpointing=recomputed)
        layer, counted = engine._policies["solver"].model.base_model.layers[0].mlp, []
        layer.register_forward_pre_hook(lambda *given, counted=counted: counted.append(given))
        checksums.append([await learn(engine, kit, iteration) for iteration in range(2)])
        passes.append(len(counted))
    assert checksums[0] == checksums[1]
    # Two updates of three steps each, of one micro-batch.
    assert passes[1] == passes[0] + 6


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_equal_and_resumed_runs_are_bit_equal(model, opened, kit, tmp_path, dtype):
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
    found, expected = [
        await sampler_engine.sampler("solver").sample(PROMPT, ask) for sampler_engine in (sampling, engine)
    ]
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


def test_storage_errors_are_raised_after_all_tensors_were_taken(tmp_path):
    taken = []
    tensors = ((name, torch.zeros(3)) for name in "abc" if taken.append(name) is None)
    with pytest.raises(FileNotFoundError, match=r"gone/weights-00000\.safetensors"):
        write_tensors(tensors, tmp_path / "gone" / "weights.safetensors", shard_bytes=12)
    assert taken == ["a", "b", "c"], "other ranks wait for this one in the gather of every tensor"


def random_tensors(seed=0):
    generator = torch.Generator().manual_seed(seed)
    sizes = {"a": (3, 5), "b": (40,), "c": (), "d": (2, 2, 2), "e": (11, 3), "f": (1,)}
    return {name: torch.randn(size, generator=generator) for name, size in sizes.items()}


def test_small_policy_is_one_safetensors_file_with_a_hash(tmp_path):
    tensors = random_tensors()
    write_tensors(tensors.items(), tmp_path / "weights.safetensors")
    save_file(tensors, tmp_path / "theirs")
    data = (tmp_path / "weights.safetensors").read_bytes()
    assert data == (tmp_path / "theirs").read_bytes()
    written = (tmp_path / "weights.safetensors.sha256").read_text()
    assert written == f"{hashlib.sha256(data).hexdigest()}  weights.safetensors\n"


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_ranks_write_shards_with_each_tensor_once(tmp_path, ranks):
    tensors, place = random_tensors(), tmp_path / "weights.safetensors"
    written = []
    for rank in range(ranks):
        before = set(tmp_path.glob("*.safetensors"))
        write_tensors(tensors.items(), place, rank=rank, ranks=ranks, shard_bytes=100)
        written.append(set(tmp_path.glob("*.safetensors")) - before)
    # 60 | 160 | 4 + 32 | 132 | 4 bytes: a shard ends before it would exceed 100.
    contents = {path.name: sorted(load_file(path)) for path in tmp_path.glob("*.safetensors")}
    shards = [["a"], ["b"], ["c", "d"], ["e"], ["f"]]
    assert contents == {f"weights-{number:05d}.safetensors": names for number, names in enumerate(shards)}
    assert [len(tensors) for tensors in written] == [len(shards[rank::ranks]) for rank in range(ranks)]
    for path in tmp_path.glob("*.safetensors"):
        digest = path.with_name(f"{path.name}.sha256").read_text().split()[0]
        assert digest == hashlib.sha256(path.read_bytes()).hexdigest()
    with StoredTensors(place) as stored:
        assert stored.shapes == {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        assert all(torch.equal(stored[name], tensor) for name, tensor in tensors.items())


async def test_sharded_policy_resumes_bit_exactly(qwen3, opened, kit, tmp_path, monkeypatch):
    engine = await opened(qwen3, train=TRAIN, deterministic=True)
    await learn(engine, kit, 0)
    monkeypatch.setattr("mappa_engine.local.policy.write_tensors", partial(write_tensors, shard_bytes=10_000))
    await engine.save(tmp_path / "policies")
    folder = tmp_path / "policies" / "solver"
    assert not (folder / "weights.safetensors").exists() and len(list(folder.glob("weights-*.safetensors"))) > 3
    resumed = await opened(qwen3, train=TRAIN, deterministic=True)
    await resumed.load(tmp_path / "policies")
    started = await opened(qwen3, policies=[PolicySpec(name="solver", model=qwen3, start=folder)])
    ask = Sampling(max_tokens=20, temperature=0.0)
    sampled = [
        (await each_engine.sampler("solver").sample(PROMPT, ask)).tokens.tolist()
        for each_engine in (engine, resumed, started)
    ]
    assert sampled[0] == sampled[1] == sampled[2]
    assert await learn(engine, kit, 1) == await learn(resumed, kit, 1)


async def test_bfloat16_checkpoint_has_the_computed_size(qwen3, opened, kit, tmp_path):
    engine = await opened(qwen3, train=TRAIN)
    await learn(engine, kit, 0)
    sizes = {}
    for dtype in ("float32", "bfloat16"):
        await engine.save(tmp_path / dtype, dtype=dtype)
        sizes[dtype] = sum(path.stat().st_size for path in (tmp_path / dtype).rglob("*.safetensors"))
        # Names and step counts take a little more.
        assert sizes[dtype] == pytest.approx(engine.checkpoint_bytes(dtype), rel=0.1)
    weights = engine.checkpoint_bytes("float32") // 12
    assert sizes["float32"] - sizes["bfloat16"] == pytest.approx(2 * weights, rel=0.01)
    exact, rounded = (load_file(tmp_path / dtype / "solver" / "weights.safetensors") for dtype in sizes)
    assert all(torch.equal(tensor.bfloat16(), rounded[name]) for name, tensor in exact.items())
    resumed = await opened(qwen3, train=TRAIN)
    await resumed.load(tmp_path / "bfloat16")
    await resumed.save(tmp_path / "again")
    again = load_file(tmp_path / "again" / "solver" / "weights.safetensors")
    assert all(torch.equal(tensor, rounded[name].float()) for name, tensor in again.items())
    moments = (load_file(tmp_path / folder / "solver" / "optimiser.safetensors") for folder in ("float32", "again"))
    first, second = moments
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())


async def test_sampling_continues_during_a_checkpoint(qwen3, opened, kit, tmp_path, monkeypatch):
    """The disk is away until an action was sampled: it would stay so for ever if sampling waited for it."""
    engine = await opened(qwen3, train=TRAIN)
    expected = await engine.sampler("solver").sample(PROMPT, Sampling(max_tokens=9, temperature=0.0))
    there, fsync = threading.Event(), os.fsync

    def slow_fsync(handle):
        assert there.wait(60), "sampling waits for the checkpoint"
        fsync(handle)

    monkeypatch.setattr("mappa_engine.checkpoint.os.fsync", slow_fsync)
    saving = asyncio.create_task(engine.save(tmp_path / "saved"))
    await asyncio.sleep(0)
    rows = [kit.Row(expected.prompt_tokens, expected.tokens, expected.logprobs, trajectory=0)]
    scored = await engine.score(kit.experience(rows))
    given = Advantages(advantages=np.ones(len(scored.tokens), dtype=np.float32))
    updating = asyncio.create_task(engine.update(scored, given, PPOLoss(PPOOptions()), 0.0))
    found = await engine.sampler("solver").sample(PROMPT, Sampling(max_tokens=9, temperature=0.0))
    assert not saving.done() and not updating.done()
    there.set()
    await saving
    await updating
    assert found.tokens.tolist() == expected.tokens.tolist()
    await engine.publish()
    await engine.save(tmp_path / "updated")
    first, second = (load_file(tmp_path / folder / "solver" / "weights.safetensors") for folder in ("saved", "updated"))
    start = load_file(Path(qwen3) / "model.safetensors")
    assert all(torch.equal(tensor, start[name]) for name, tensor in first.items()), "a checkpoint has one version"
    assert any(not torch.equal(tensor, second[name]) for name, tensor in first.items())


@pytest.fixture
async def saved(qwen3, opened, kit, tmp_path):
    """The folder of a policy after a step of training, and a function that loads it anew."""
    engine = await opened(qwen3, train=TRAIN)
    await learn(engine, kit, 0)
    await engine.save(tmp_path / "policies")

    async def load() -> None:
        await (await opened(qwen3, train=TRAIN)).load(tmp_path / "policies")

    return tmp_path / "policies" / "solver", load


@pytest.mark.parametrize(
    "state",
    ['{"version": 1e999, "steps": 1}', '{"version": NaN, "steps": 1}', '{"version": 1, "steps": -1}', "[]", "[" * 9_000,
     '{"version": true, "steps": 1}', '{"version": "1", "steps": 1}', '{"version": 1}', "", "9" * 5_000, "\x00",
     '{"version": 99999999999999999999999999, "steps": 1}'],
)  # fmt: skip
async def test_counts_that_are_none_are_an_error_of_the_input(saved, state):
    folder, load = saved
    (folder / "state.json").write_text(state)
    with pytest.raises(RunError, match=r"state\.json is damaged"):
        await load()


async def test_tensors_that_are_none_are_an_error_of_the_input(saved):
    folder, load = saved
    weights, moments = folder / "weights.safetensors", folder / "optimiser.safetensors"
    whole, own = weights.read_bytes(), moments.read_bytes()
    tensors = load_file(moments)
    first = next(name for name in tensors if name.startswith("exp_avg."))
    for content, says in [
        (b"", "is damaged"),
        (whole[: len(whole) // 2], "is damaged"),
        (b"\xff" * 100, "is damaged"),
        (whole, "is not the state of an optimiser of these weights"),
        (save({}), "is empty, and its policy was trained for"),
        (save({**tensors, first: torch.zeros(3)}), "the shape of 'exp_avg"),
        (save({name: tensor for name, tensor in tensors.items() if name != first}), "is damaged: it holds"),
        (save({**tensors, first: tensors[first].to(torch.int64)}), "which is no floating-point type"),
    ]:
        moments.write_bytes(content)
        with pytest.raises(RunError, match=says):
            await load()
    moments.write_bytes(own)
    weights.write_bytes(own)
    with pytest.raises(RunError, match="the weights are not those of"):
        await load()
    weights.write_bytes(whole)
    await load()


@pytest.mark.parametrize("name", ["state.json", "weights.safetensors", "optimiser.safetensors"])
async def test_a_link_in_a_checkpoint_is_not_followed(saved, name):
    folder, load = saved
    (folder / name).rename(folder / "moved")
    (folder / name).symlink_to("moved")
    with pytest.raises(RunError, match=f"{name} is a symbolic link"):
        await load()
