"""Samplers: vLLM in actors, exact to the model's own forward, whatever is published, lost or asked at once."""

import asyncio
import re
from dataclasses import replace

import numpy as np
import pytest
import pytest_asyncio
import torch
from safetensors.torch import load_file

from mappa_core.errors import EngineError, EngineLost, PromptTooLong
from mappa_core.records import Sampling
from mappa_engine.cluster.samplers.sampler import ClusterSampler
from mappa_engine.cluster.sync.buckets import fill_buckets
from mappa_engine.model_info import read_model_info

from .conftest import WINDOW, write_model
from .sampler_cases import EXACT, TIED, ask, gap, kill, logprobs, masks_of, model_of, open_pool, prompts, sampler_config

pytestmark = pytest.mark.asyncio(loop_scope="module")

STOP = 2


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def side(ray_actors, qwen3):
    """Two engines of the tied model, each wave apart."""
    setup = sampler_config(qwen3, isolate_waves=True, tied=TIED)
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


async def test_request_does_not_depend_on_others(sampler):
    more_than_one_step = prompts(9) + prompts(60, seed=1, length=200)
    requests = [(prompt, Sampling(max_tokens=40, seed=i)) for i, prompt in enumerate(more_than_one_step)]
    together = await ask(sampler, requests)
    for request, answer in list(zip(requests, together, strict=True))[:9:4]:
        (alone,) = await ask(sampler, [request])
        assert alone.tokens.tolist() == answer.tokens.tolist()
    (again,) = await ask(sampler, [(requests[0][0], Sampling(max_tokens=40, seed=99))])
    assert again.tokens.tolist() != together[0].tokens.tolist()


@pytest.mark.parametrize("ways", [{}, {"top_p": 0.6, "top_k": 20}])
async def test_action_ends_at_a_stop_text_with_the_tokens_that_are_sampled_without_it(sampler, ways):
    requests = [(prompt, Sampling(max_tokens=60, seed=i, **ways)) for i, prompt in enumerate(prompts(12))]
    cases = []
    for request, whole in zip(requests, await ask(sampler, requests), strict=True):
        # Random weights write bytes that are no characters, which decode to others in a part than in the whole.
        if text := re.search("[ -~]{2}", whole.text[4:-4]):
            cases.append((request, whole, text[0]))
    assert len(cases) > 3
    stopping = [(prompt, replace(sampling, stop=("never written", text))) for (prompt, sampling), _, text in cases]
    for (_, whole, text), found in zip(cases, await ask(sampler, stopping), strict=True):
        assert (found.text, found.stop_text, found.finish) == (whole.text.split(text)[0], text, "stop")
        count = len(found.tokens)
        assert count < len(whole.tokens)
        assert found.tokens.tolist() == whole.tokens[:count].tolist()
        assert found.logprobs.tolist() == whole.logprobs[:count].tolist()
        assert [(span.start, span.end) for span in found.versions] == [(0, count)]
        if ways:
            assert [mask.tolist() for mask in masks_of(found)] == [mask.tolist() for mask in masks_of(whole)[:count]]


async def test_action_ends_at_a_stop_token_or_the_limit(sampler):
    found = await ask(sampler, [(p, Sampling(max_tokens=120, seed=i)) for i, p in enumerate(prompts(24))])
    assert {completion.finish for completion in found} == {"stop", "length"}
    for completion in found:
        assert (completion.finish == "stop") == (completion.tokens[-1] == STOP)
        assert STOP not in completion.tokens[:-1]
        assert completion.finish == "stop" or len(completion.tokens) == 120
        assert "<|im_end|>" not in completion.text
        assert [(span.version, span.start, span.end) for span in completion.versions] == [
            (0, 0, len(completion.tokens))
        ]


async def test_a_prompt_beyond_the_window_is_refused(sampler):
    prompt = np.full(WINDOW - 10, 5, np.int32)
    (found,) = await ask(sampler, [(prompt, Sampling(max_tokens=10))])
    assert 1 <= len(found.tokens) <= 10
    with pytest.raises(PromptTooLong, match="do not fit the window"):
        await ask(sampler, [(prompt, Sampling(max_tokens=11))])


async def test_invalid_tokens_fail_only_their_request(sampler):
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


async def test_request_during_a_publish_is_exact_for_each_version(side, sampler, qwen3, newer):
    models = {0: model_of(qwen3), 1: model_of(newer)}
    for delay in (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4):  # by then some request has begun, and another not ended
        await side.publish("solver", 0, load_file(f"{qwen3}/model.safetensors"))
        tasks = start(sampler, 8)
        await asyncio.sleep(delay)
        await side.publish("solver", 1, load_file(f"{newer}/model.safetensors"))
        found = await asyncio.gather(*tasks)
        for completion in found:
            assert [span.start for span in completion.versions] == [0, *(span.end for span in completion.versions[:-1])]
            for span in completion.versions:
                exact = logprobs(models[span.version], completion.prompt_tokens, completion.tokens)
                assert np.abs(completion.logprobs - exact)[span.start : span.end].max() < EXACT
        if any({span.version for span in completion.versions} == {0, 1} for completion in found):
            break
    else:
        raise AssertionError("no publish met a request")
    (after,) = await ask(sampler, [(found[0].prompt_tokens, Sampling(max_tokens=20))])
    assert gap(models[1], after) < EXACT


async def test_nothing_is_sampled_between_a_load_and_its_admission(side, sampler, newer):
    (engine, other) = side.pool.engines
    tasks = start(sampler, 2)
    await asyncio.sleep(0)
    tensors = load_file(f"{newer}/model.safetensors")
    received = await side.load(engine, "solver", 1, tensors)
    probe = prompts(3, seed=5)
    found = await engine.logprobs("solver", 1, probe)
    model = model_of(newer)
    for sequence, answer in zip(probe, found, strict=True):
        assert np.abs(answer - logprobs(model, sequence[:1], sequence[1:])).max() < EXACT
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
async def test_interrupted_weights_are_not_used(side, sampler, newer, cut):
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


async def test_an_engine_that_fails_in_a_load_is_replaced(side, sampler, newer):
    engine = side.pool.engines[0]
    tensors = load_file(f"{newer}/model.safetensors")
    broken = {name: tensor[:-1] if name == "model.norm.weight" else tensor for name, tensor in tensors.items()}
    process, restarts = engine.actor.process, side.pool.restarts
    with pytest.raises(EngineLost, match="failed: "):
        await side.load(engine, "solver", 1, broken)
    while engine.lost is not None or engine.stale:
        await asyncio.sleep(0.1)
    assert side.pool.restarts == restarts + 1 and engine.actor.process.pid != process.pid
    assert "failed: " in engine.actor.process.lost[-1]
    await side.publish("solver", 1, tensors)
    (found,) = await ask(sampler, [(prompts(1)[0], Sampling(max_tokens=30))])
    assert gap(model_of(newer), found) < EXACT


async def test_a_missing_tensor_shows_in_the_names_and_in_a_probe(side, sampler, newer):
    engine = side.pool.engines[0]
    tensors = load_file(f"{newer}/model.safetensors")
    missing = "model.layers.0.self_attn.q_proj.weight"
    received = await side.load(
        engine, "solver", 1, {name: tensor for name, tensor in tensors.items() if name != missing}
    )
    assert set(tensors) - set(received.names) == {missing}
    (sequence,) = prompts(1, seed=3)
    (found,) = await engine.logprobs("solver", 1, [sequence])
    exact = logprobs(model_of(newer), sequence[:1], sequence[1:])
    assert not np.abs(found - exact).max() < 100 * EXACT
    await side.publish("solver", 1, tensors)


async def test_wave_of_a_lost_engine_is_decoded_again_bit_equal(side, sampler):
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
    for completion, other in zip(before, after, strict=True):
        assert completion.tokens.tolist() == other.tokens.tolist()
        assert completion.logprobs.tobytes() == other.logprobs.tobytes()
