"""The batching sampler: exact, fair to short requests, and blind to neighbours."""

import asyncio

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from mappa_core import ConfigError, PromptTooLong, Sampling
from mappa_core.engine import EngineLost, PolicySpec


def prompts(count: int, seed: int = 0) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.integers(3, 259, random.integers(2, 50)).astype(np.int32) for _ in range(count)]


def samplings(count: int, **fields) -> list[Sampling]:
    random = np.random.default_rng(1)
    return [Sampling(max_tokens=int(random.integers(1, 60)), seed=index, **fields) for index in range(count)]


async def ask(engine, requests):
    sampler = engine.sampler("solver")
    return await asyncio.gather(*(sampler.sample(tokens, sampling) for tokens, sampling in requests))


async def start(engine, requests) -> list[asyncio.Task]:
    """Have `requests` sampled, and return when they are being decoded."""
    sampler = engine.sampler("solver")
    first, *tasks = [
        asyncio.create_task(sampler.sample(tokens, sampling))
        for tokens, sampling in [(requests[0][0], Sampling(max_tokens=1)), *requests]
    ]
    await first
    return tasks


LONG = Sampling(max_tokens=100, temperature=0.0)


@torch.inference_mode()
def slow_greedy(folder: str, prompt: np.ndarray, count: int) -> list[int]:
    """One token at a time, the whole sequence anew, by the model's own forward."""
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    tokens = prompt.tolist()
    while len(tokens) < len(prompt) + count and (len(tokens) == len(prompt) or tokens[-1] != 2):
        tokens.append(int(model(input_ids=torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[len(prompt) :]


async def test_greedy_tokens_are_those_of_the_model_itself(model, opened):
    engine = await opened(model)
    requests = list(zip(prompts(12), samplings(12, temperature=0.0), strict=True))
    for (prompt, sampling), found in zip(requests, await ask(engine, requests), strict=True):
        assert found.tokens.tolist() == slow_greedy(model, prompt, sampling.max_tokens)


@pytest.mark.parametrize("temperature", [1.0, 0.6, 0.0])
async def test_sampler_and_learner_agree_on_logprobs(model, opened, train, kit, temperature):
    engine = await opened(model, train=train)
    requests = list(zip(prompts(10), samplings(10, temperature=temperature), strict=True))
    found = await ask(engine, requests)
    rows = [
        kit.Row(
            completion.prompt_tokens,
            completion.tokens,
            completion.logprobs,
            trajectory=i,
            temperature=completion.temperature,
        )
        for i, completion in enumerate(found)
    ]
    scored = await engine.score(kit.experience(rows))
    np.testing.assert_allclose(scored.logprobs, scored.old_logprobs, atol=1e-5)


async def test_every_caller_gets_the_answer_to_its_own_request(model, opened):
    engine = await opened(model)
    requests = list(zip(prompts(20), samplings(20), strict=True))
    together = await ask(engine, requests)
    for request, found in zip(requests, together, strict=True):
        (alone,) = await ask(engine, [request])
        assert found.prompt_tokens.tolist() == request[0].tolist()
        assert found.tokens.tolist() == alone.tokens.tolist()
        np.testing.assert_allclose(found.logprobs, alone.logprobs, atol=1e-5)


async def test_requests_beyond_max_batch_wait(qwen3, opened):
    requests = list(zip(prompts(9), samplings(9), strict=True))
    few = await ask(await opened(qwen3, max_batch=2, prefill_tokens=1), requests)
    many = await ask(await opened(qwen3), requests)
    assert [completion.tokens.tolist() for completion in few] == [completion.tokens.tolist() for completion in many]


async def test_equal_prompts_are_sampled_independently(qwen3, opened):
    engine = await opened(qwen3)
    prompt = prompts(1)[0]
    found = await ask(engine, [(prompt, Sampling(max_tokens=20, seed=seed)) for seed in (1, 2, 1)])
    assert found[0].tokens.tolist() == found[2].tokens.tolist() != found[1].tokens.tolist()


async def test_action_ends_at_a_stop_token_or_the_limit(model, opened):
    engine = await opened(model)
    requests = [(prompt, Sampling(max_tokens=60, seed=i)) for i, prompt in enumerate(prompts(64))]
    found = await ask(engine, requests)
    assert {completion.finish for completion in found} == {"stop", "length"}
    for completion in found:
        assert (completion.finish == "stop") == (completion.tokens[-1] == 2)
        assert 2 not in completion.tokens[:-1]
        assert completion.finish == "stop" or len(completion.tokens) == 60
        assert len(completion.logprobs) == len(completion.tokens)
        assert "<|im_end|>" not in completion.text


async def test_text_is_the_tokens_decoded(qwen3, opened, kit):
    engine = await opened(qwen3)
    (found,) = await ask(engine, [(prompts(1)[0], Sampling(max_tokens=30, seed=3))])
    ids = [token for token in found.tokens.tolist() if token != 2]
    assert found.text == kit.tokenizer().decode(ids, clean_up_tokenization_spaces=False)


async def test_a_short_request_does_not_wait_for_a_long_one(qwen3, opened):
    engine = await opened(qwen3)
    sampler, prompt = engine.sampler("solver"), prompts(1)[0]
    (long,) = await start(engine, [(prompt, LONG)])
    short = asyncio.create_task(sampler.sample(prompt, Sampling(max_tokens=1)))
    done, _ = await asyncio.wait([long, short], return_when=asyncio.FIRST_COMPLETED)
    assert done == {short}
    assert len((await long).tokens) == 100


async def test_policies_are_decoded_in_turn(qwen3, llama, opened):
    specs = [
        PolicySpec(name="solver", model=qwen3, kind="frozen"),
        PolicySpec(name="coder", model=llama, kind="frozen"),
    ]
    engine = await opened(qwen3, policies=specs)
    prompt = prompts(1)[0]
    (long,) = await start(engine, [(prompt, LONG)])
    short = await engine.sampler("coder").sample(prompt, Sampling(max_tokens=2))
    assert not long.done()
    assert len(short.tokens) == 2
    await long


async def test_a_prompt_that_does_not_fit_is_refused_and_counted(qwen3, opened, kit):
    engine = await opened(qwen3)
    prompt = np.arange(100, dtype=np.int32)
    with pytest.raises(PromptTooLong, match=r"100 tokens.*max_tokens=61.*160 tokens"):
        await engine.sampler("solver").sample(prompt, Sampling(max_tokens=kit.window - 99))
    found = await engine.sampler("solver").sample(prompt, Sampling(max_tokens=kit.window - 100))
    assert len(found.tokens) <= 60


async def test_max_tokens_beyond_the_window_are_a_setting_and_nobodys_long_text(qwen3, opened, kit):
    """A prompt of one token does not fit either: no agent made it long, and no reward may say so."""
    sampler = (await opened(qwen3)).sampler("solver")
    prompt = np.arange(1, dtype=np.int32)
    with pytest.raises(ConfigError, match=r"max_tokens=160 leaves no room for a prompt .* 160 tokens: lower agents"):
        await sampler.sample(prompt, Sampling(max_tokens=kit.window))
    assert len((await sampler.sample(prompt, Sampling(max_tokens=kit.window - 1))).tokens)


@pytest.mark.parametrize("wrong", [{"temperature": -1.0}, {"top_p": 0.0}, {"top_k": -1}, {"max_tokens": 0}])
async def test_invalid_sampling_is_refused(qwen3, opened, wrong):
    engine = await opened(qwen3)
    with pytest.raises(ConfigError, match="sampling needs"):
        await engine.sampler("solver").sample(prompts(1)[0], Sampling(**wrong))


async def test_cancelled_caller_disturbs_no_other(qwen3, opened):
    engine = await opened(qwen3)
    requests = list(zip(prompts(6), samplings(6), strict=True))
    expected = await ask(engine, requests)
    gone, *tasks = await start(engine, [(prompts(1)[0], LONG), *requests])
    gone.cancel()
    found = await asyncio.gather(*tasks)
    assert [completion.tokens.tolist() for completion in found] == [
        completion.tokens.tolist() for completion in expected
    ]


async def test_decoding_error_reaches_callers_once(qwen3, opened):
    engine = await opened(qwen3)
    sampler, bad = engine.sampler("solver"), np.array([100_000], np.int32)
    with pytest.raises(EngineLost, match="IndexError"):
        await sampler.sample(bad, Sampling(max_tokens=5))
    assert len((await sampler.sample(prompts(1)[0], Sampling(max_tokens=1))).tokens) == 1


async def test_a_row_is_sampled_from_one_version_only(qwen3, opened, train):
    engine = await opened(qwen3, train=train)
    sampler, prompt = engine.sampler("solver"), prompts(1)[0]
    (early,) = await start(engine, [(prompt, LONG)])
    receipts, late = await asyncio.gather(engine.publish(), sampler.sample(prompt, Sampling(max_tokens=5)))
    assert receipts["solver"].version == 1
    assert [(span.version, span.start, span.end) for span in (await early).versions] == [(0, 0, 100)]
    assert late.versions[0].version == 1


async def test_cancelled_job_blocks_no_request(qwen3, opened):
    engine = await opened(qwen3)
    prompt = prompts(1)[0]
    (long,) = await start(engine, [(prompt, LONG)])
    job = asyncio.create_task(engine.publish())
    await asyncio.sleep(0)
    job.cancel()
    found = await engine.sampler("solver").sample(prompt, Sampling(max_tokens=1))
    assert len(found.tokens) == 1
    assert len((await long).tokens) == 100


def bits(found) -> list[tuple[bytes, bytes]]:
    return [(completion.tokens.tobytes(), completion.logprobs.tobytes()) for completion in found]


async def test_waves_are_bit_equal_beside_other_requests(model, opened):
    engine = await opened(model, deterministic=True)
    first = list(zip(prompts(9), samplings(9), strict=True))
    second = list(zip(prompts(5, seed=7), samplings(5), strict=True))
    expected = bits(await asyncio.gather(*await start(engine, first))), bits(await ask(engine, second))
    running = await start(engine, first)
    late = bits(await ask(engine, second))
    assert (bits(await asyncio.gather(*running)), late) == expected


async def test_another_engine_gives_the_same_bits(qwen3, opened):
    requests = list(zip(prompts(9), samplings(9), strict=True))
    one, other = [await ask(await opened(qwen3, deterministic=True), requests) for _ in range(2)]
    assert bits(one) == bits(other)
