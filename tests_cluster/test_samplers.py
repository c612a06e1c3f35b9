"""Samplers: vLLM in actors, exact to the model's own forward, whatever is published, lost or asked at once."""

import asyncio
import os
import signal
from collections.abc import Mapping

import numpy as np
import pytest
import pytest_asyncio
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from mappa_core.errors import EngineError, PromptTooLong
from mappa_core.records import Sampling
from mappa_engine.cluster.samplers.messages import SamplerConfig
from mappa_engine.cluster.samplers.pool import SamplerPool
from mappa_engine.cluster.samplers.remote_engine import Deadlines, EngineResources
from mappa_engine.cluster.samplers.sampler import ClusterSampler
from mappa_engine.cluster.sync.buckets import fill_buckets
from mappa_engine.model_info import read_model_info

from .conftest import WINDOW, write_model

pytestmark = pytest.mark.asyncio(loop_scope="module")

TIED = {"model.embed_tokens.weight": "lm_head.weight"}
STOP = 2
EXACT = 1e-4


class Side:
    """What the learners' side of a publish does here: it has the tensors, and hands them over."""

    def __init__(self, ray_actors) -> None:
        self.ray_actors = ray_actors
        self.pool: SamplerPool
        self.current: dict[str, tuple[int, Mapping[str, torch.Tensor], dict | None]] = {}

    async def publish(self, policy, version, tensors, adapter=None) -> None:
        self.current[policy] = version, tensors, adapter
        for engine in self.pool.engines:
            await self.deliver(engine, policy)

    async def load(self, engine, policy, version, tensors, adapter=None):
        if adapter is None:
            await engine.pause()
        await engine.begin_load(policy, version, adapter)
        for bucket in fill_buckets(tensors.items(), 1 << 15):
            await engine.load_bucket(self.ray_actors.put(bucket))
        return await engine.finish_load()

    async def deliver(self, engine, policy) -> None:
        version, tensors, adapter = self.current[policy]
        received = await self.load(engine, policy, version, tensors, adapter)
        assert received.version == version
        assert set(tensors) <= set(received.names)
        await engine.activate(policy, version)

    async def refresh(self, name) -> None:
        (engine,) = [one for one in self.pool.engines if one.name == name]
        for policy in self.current:
            await self.deliver(engine, policy)


DEADLINES = Deadlines(start_s=300, sync_s=120, call_s=300)


async def open_pool(ray_actors, setup, *, name, engines, full) -> Side:
    side = Side(ray_actors)
    side.pool = SamplerPool(
        ray_actors,
        setup,
        [EngineResources(cpus=1)] * engines,
        name=name,
        full=full,
        deadlines=DEADLINES,
        refresh=side.refresh,
    )
    await side.pool.open()
    return side


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def side(ray_actors, qwen3):
    """Two engines of the tied model, each wave apart."""
    setup = SamplerConfig(
        model=qwen3,
        device="cpu",
        dtype="float32",
        window=WINDOW,
        kv_cache_bytes=64 << 20,
        max_batch=64,
        isolate_waves=True,
        tied=TIED,
    )
    one = await open_pool(ray_actors, setup, name="solver", engines=2, full=True)
    one.current["solver"] = 0, load_file(f"{qwen3}/model.safetensors"), None
    yield one
    await one.pool.close()


@pytest.fixture(scope="module")
def newer(tmp_path_factory) -> str:
    """The folder of the same model after some updates."""
    return write_model(tmp_path_factory.mktemp("newer") / "qwen3", "qwen3", seed=1)


@pytest.fixture
async def sampler(side, qwen3) -> ClusterSampler:
    """The sampler with the weights of the folder."""
    if side.current["solver"][0] != 0:
        await side.publish("solver", 0, load_file(f"{qwen3}/model.safetensors"))
    return ClusterSampler("solver", read_model_info(qwen3), side.pool, window=WINDOW, template_kwargs={})


def prompts(count, seed=0, length=60):
    random = np.random.default_rng(seed)
    return [random.integers(3, 259, random.integers(2, length)).astype(np.int32) for _ in range(count)]


async def ask(sampler, requests):
    return await asyncio.gather(*(sampler.sample(prompt, sampling) for prompt, sampling in requests))


@torch.inference_mode()
def logprobs(model, prompt, tokens, temperature=1.0, masks=None):
    """Of `tokens` after `prompt`, by the model's own forward in float32; of what `masks` left where there are any."""
    ids = torch.tensor([[*prompt.tolist(), *tokens.tolist()]])
    logits = model(input_ids=ids).logits[0, len(prompt) - 1 : -1].float() / (temperature or 1.0)
    for row, mask in enumerate(masks or ()):
        cut = torch.ones(logits.shape[1], dtype=torch.bool)
        cut[torch.tensor(mask).long()] = False
        logits[row, cut] = -torch.inf
    return torch.log_softmax(logits, dim=-1).gather(1, ids[0, len(prompt) :, None])[:, 0].numpy()


def model_of(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def masks_of(found):
    return None if found.mask_sizes is None else np.split(found.mask_tokens, np.cumsum(found.mask_sizes)[:-1])


def gap(model, found):
    expected = logprobs(model, found.prompt_tokens, found.tokens, found.temperature, masks_of(found))
    return np.abs(found.logprobs - expected).max()


@pytest.mark.parametrize(
    "ways", [{"temperature": 0.0}, {"temperature": 0.7}, {}, {"top_p": 0.6, "top_k": 20, "temperature": 0.7}]
)
async def test_logprobs_are_those_of_the_model(sampler, qwen3, ways):
    model = model_of(qwen3)
    requests = [(prompt, Sampling(max_tokens=60, seed=i, **ways)) for i, prompt in enumerate(prompts(10))]
    for found in await ask(sampler, requests):
        assert len(found.logprobs) == len(found.tokens)
        assert gap(model, found) < EXACT
        assert (found.mask_sizes is None) == ("top_k" not in ways)
        for mask, token in zip(masks_of(found) or (), found.tokens, strict=False):
            assert token in mask and len(set(mask.tolist())) == len(mask) <= 20
        if not found.temperature:
            rest = np.concatenate([found.prompt_tokens, found.tokens])[None, :-1]
            with torch.inference_mode():
                likeliest = model(input_ids=torch.tensor(rest.astype(np.int64))).logits[0].argmax(-1)
            assert found.tokens.tolist() == likeliest[len(found.prompt_tokens) - 1 :].tolist()


async def test_a_request_alone_draws_what_it_draws_among_others(sampler):
    more_than_one_step = prompts(9) + prompts(60, seed=1, length=200)
    requests = [(prompt, Sampling(max_tokens=40, seed=i)) for i, prompt in enumerate(more_than_one_step)]
    together = await ask(sampler, requests)
    for request, one in list(zip(requests, together, strict=True))[:9:4]:
        (alone,) = await ask(sampler, [request])
        assert alone.tokens.tolist() == one.tokens.tolist()
    (again,) = await ask(sampler, [(requests[0][0], Sampling(max_tokens=40, seed=99))])
    assert again.tokens.tolist() != together[0].tokens.tolist()


async def test_ends_at_the_stop_token_or_at_the_limit(sampler):
    found = await ask(sampler, [(p, Sampling(max_tokens=120, seed=i)) for i, p in enumerate(prompts(24))])
    assert {one.finish for one in found} == {"stop", "length"}
    for one in found:
        assert (one.finish == "stop") == (one.tokens[-1] == STOP)
        assert STOP not in one.tokens[:-1]
        assert one.finish == "stop" or len(one.tokens) == 120
        assert "<|im_end|>" not in one.text
        assert [(span.version, span.start, span.end) for span in one.versions] == [(0, 0, len(one.tokens))]


async def test_a_prompt_beyond_the_window_is_refused(sampler):
    prompt = np.full(WINDOW - 10, 5, np.int32)
    (found,) = await ask(sampler, [(prompt, Sampling(max_tokens=10))])
    assert 1 <= len(found.tokens) <= 10
    with pytest.raises(PromptTooLong, match="do not fit the window"):
        await ask(sampler, [(prompt, Sampling(max_tokens=11))])


async def test_tokens_that_the_model_does_not_have_are_refused_alone(sampler):
    good, bad = prompts(1)[0], np.array([5, 10_000], np.int32)
    results = await asyncio.gather(
        *(sampler.sample(prompt, Sampling(max_tokens=5)) for prompt in (good, bad)), return_exceptions=True
    )
    assert len(results[0].tokens) >= 1
    assert isinstance(results[1], EngineError)


def start(sampler, count) -> list[asyncio.Task]:
    """Long requests of one turn, which the engines share."""
    return [
        asyncio.create_task(sampler.sample(p, Sampling(max_tokens=180, seed=i)))
        for i, p in enumerate(prompts(count, length=30))
    ]


async def test_a_request_that_a_publish_meets_is_exact_for_each_version(side, sampler, qwen3, newer):
    models = {0: model_of(qwen3), 1: model_of(newer)}
    for delay in (0.1, 0.2, 0.4, 0.8, 1.6):  # by then some request has begun, and another not ended
        await side.publish("solver", 0, load_file(f"{qwen3}/model.safetensors"))
        tasks = start(sampler, 8)
        await asyncio.sleep(delay)
        await side.publish("solver", 1, load_file(f"{newer}/model.safetensors"))
        found = await asyncio.gather(*tasks)
        for one in found:
            assert [span.start for span in one.versions] == [0, *(span.end for span in one.versions[:-1])]
            for span in one.versions:
                exact = logprobs(models[span.version], one.prompt_tokens, one.tokens)
                assert np.abs(one.logprobs - exact)[span.start : span.end].max() < EXACT
        if any({span.version for span in one.versions} == {0, 1} for one in found):
            break
    else:
        raise AssertionError("no publish met a request")
    (after,) = await ask(sampler, [(found[0].prompt_tokens, Sampling(max_tokens=20))])
    assert gap(models[1], after) < EXACT


async def test_nothing_is_sampled_between_a_load_and_its_admission(side, sampler, newer):
    (engine, other) = side.pool.engines
    tasks = start(sampler, 2)
    await asyncio.sleep(0.02)
    tensors = load_file(f"{newer}/model.safetensors")
    received = await side.load(engine, "solver", 1, tensors)
    probe = prompts(3, seed=5)
    found = await engine.logprobs("solver", 1, probe)
    model = model_of(newer)
    for sequence, one in zip(probe, found, strict=True):
        assert np.abs(one - logprobs(model, sequence[:1], sequence[1:])).max() < EXACT
    await asyncio.sleep(0.3)
    assert not tasks[0].done()
    assert received.names[:2] == ("model.embed_tokens.weight", "lm_head.weight")
    with pytest.raises(EngineError, match="version 1"):
        await engine.logprobs("solver", 0, probe)
    await engine.activate("solver", 1)
    side.current["solver"] = 1, tensors, None
    await side.deliver(other, "solver")
    assert (await tasks[0]).versions[-1].version == 1


@pytest.mark.parametrize("cut", [0, 3, 4, 5])
async def test_weights_that_break_off_are_not_used_until_they_came_whole(side, sampler, newer, cut):
    engine = side.pool.engines[0]
    tensors = load_file(f"{newer}/model.safetensors")
    await engine.pause()
    await engine.begin_load("solver", 1, None)
    buckets = [side.ray_actors.put(bucket) for bucket in fill_buckets(tensors.items(), 1 << 15)]
    for bucket in buckets[:cut]:
        await engine.load_bucket(bucket)
    for refused in (engine.resume(), engine.activate("solver", 1), engine.logprobs("solver", 1, prompts(1))):
        with pytest.raises(EngineError, match="did not arrive whole"):
            await refused
    await side.publish("solver", 1, tensors)
    (found,) = await ask(sampler, [(prompts(1)[0], Sampling(max_tokens=30))])
    assert gap(model_of(newer), found) < EXACT


async def test_a_tensor_of_another_shape_is_an_error_and_mended_by_a_whole_load(side, sampler, newer):
    engine = side.pool.engines[0]
    tensors = load_file(f"{newer}/model.safetensors")
    broken = {name: one[:-1] if name == "model.norm.weight" else one for name, one in tensors.items()}
    with pytest.raises((AssertionError, RuntimeError, ValueError)):
        await side.load(engine, "solver", 1, broken)
    await side.publish("solver", 1, tensors)
    (found,) = await ask(sampler, [(prompts(1)[0], Sampling(max_tokens=30))])
    assert gap(model_of(newer), found) < EXACT


async def test_a_missing_tensor_shows_in_the_names_and_in_a_probe(side, sampler, newer):
    engine = side.pool.engines[0]
    tensors = load_file(f"{newer}/model.safetensors")
    missing = "model.layers.0.self_attn.q_proj.weight"
    received = await side.load(engine, "solver", 1, {name: one for name, one in tensors.items() if name != missing})
    assert set(tensors) - set(received.names) == {missing}
    (sequence,) = prompts(1, seed=3)
    (found,) = await engine.logprobs("solver", 1, [sequence])
    exact = logprobs(model_of(newer), sequence[:1], sequence[1:])
    assert not np.abs(found - exact).max() < 100 * EXACT
    await side.publish("solver", 1, tensors)


def kill(engine) -> None:
    os.kill(engine.actor.process.pid, signal.SIGKILL)


async def test_a_wave_that_an_engine_took_with_it_is_decoded_again_to_the_bit(side, sampler):
    requests = [(p, Sampling(max_tokens=150, seed=i)) for i, p in enumerate(prompts(16, seed=7))]
    before = await ask(sampler, requests)
    victim = side.pool.engines[1]
    process, restarts = victim.actor.process, side.pool.restarts
    waiting = asyncio.ensure_future(ask(sampler, requests))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    kill(victim)
    after = await waiting
    assert side.pool.restarts == restarts + 1
    assert victim.actor.process.pid != process.pid
    for one, other in zip(before, after, strict=True):
        assert one.tokens.tolist() == other.tokens.tolist()
        assert one.logprobs.tobytes() == other.logprobs.tobytes()


AGENTS = ("solver", "critic", "writer")


@pytest.fixture(scope="module")
def adapters(tmp_path_factory, llama):
    """Three adapters of one base: tensors by peft's names, their config, and the merged model of each."""
    made = {}
    for seed, agent in enumerate(AGENTS):
        torch.manual_seed(seed)
        targets = ["q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
        model = get_peft_model(model_of(llama), LoraConfig(r=4, lora_alpha=8, target_modules=targets))
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.3)
        folder = tmp_path_factory.mktemp(agent)
        model.save_pretrained(folder)
        config = {**model.peft_config["default"].to_dict(), "target_modules": targets, "inference_mode": True}
        config = {key: value for key, value in config.items() if isinstance(value, str | int | float | list | None)}
        made[agent] = load_file(folder / "adapter_model.safetensors"), config, model.merge_and_unload().eval()
    return made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def lora(ray_actors, llama):
    """One engine of a base and room for adapters on it; `base` is a policy of the base itself."""
    setup = SamplerConfig(
        model=llama,
        device="cpu",
        dtype="float32",
        window=WINDOW,
        kv_cache_bytes=64 << 20,
        max_batch=64,
        adapter_policies=AGENTS,
        lora_rank=4,
        max_adapters=4,
    )
    one = await open_pool(ray_actors, setup, name="team", engines=1, full=False)
    yield one
    await one.pool.close()


async def test_three_adapters_and_their_base_are_served_at_once(lora, llama, adapters):
    reading = read_model_info(llama)
    samplers = {
        name: ClusterSampler(name, reading, lora.pool, window=WINDOW, template_kwargs={}) for name in (*AGENTS, "base")
    }
    with pytest.raises(EngineError, match="no weights yet"):
        await samplers["critic"].sample(prompts(1)[0], Sampling(max_tokens=3))
    for agent, (tensors, config, _) in adapters.items():
        await lora.publish(agent, 3, tensors, config)
    models = {agent: merged for agent, (_, _, merged) in adapters.items()} | {"base": model_of(llama)}
    names = [(*AGENTS, "base")[i % 4] for i in range(12)]
    found = await asyncio.gather(
        *(
            samplers[name].sample(prompt, Sampling(max_tokens=40, seed=i))
            for i, (name, prompt) in enumerate(zip(names, prompts(3, seed=2) * 4, strict=True))
        )
    )
    for name, one in zip(names, found, strict=True):
        assert gap(models[name], one) < EXACT
        assert [span.version for span in one.versions] == [0 if name == "base" else 3]
    assert gap(models["solver"], found[1]) > EXACT


async def test_a_request_under_way_keeps_its_adapter_while_a_newer_one_is_taken_up(lora, llama, adapters):
    sampler = ClusterSampler("solver", read_model_info(llama), lora.pool, window=WINDOW, template_kwargs={})
    (old, config, merged), (new, _, newly) = adapters["solver"], adapters["writer"]
    await lora.publish("solver", 4, old, config)
    prompt = prompts(1, seed=4)[0]
    task = asyncio.create_task(sampler.sample(prompt, Sampling(max_tokens=150, seed=1)))
    await asyncio.sleep(0.1)
    await lora.publish("solver", 5, new, config)
    (probed,) = await lora.pool.engines[0].logprobs("solver", 5, [prompt])
    assert np.abs(probed - logprobs(newly, prompt[:1], prompt[1:])).max() < EXACT
    later = await sampler.sample(prompt, Sampling(max_tokens=60, seed=1))
    assert [span.version for span in later.versions] == [5]
    assert gap(newly, later) < EXACT
    found = await task
    assert [span.version for span in found.versions] == [4]
    assert gap(merged, found) < EXACT


async def test_an_engine_that_is_lost_comes_back_with_its_adapters(lora, llama, adapters):
    sampler = ClusterSampler("critic", read_model_info(llama), lora.pool, window=WINDOW, template_kwargs={})
    tensors, config, merged = adapters["critic"]
    await lora.publish("critic", 6, tensors, config)
    waiting = [
        asyncio.create_task(sampler.sample(p, Sampling(max_tokens=150, seed=i))) for i, p in enumerate(prompts(6))
    ]
    await asyncio.sleep(0.1)
    kill(lora.pool.engines[0])
    for one in await asyncio.gather(*waiting):
        assert [span.version for span in one.versions] == [6]
        assert gap(merged, one) < EXACT
    assert lora.pool.restarts == 1
