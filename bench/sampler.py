"""Concurrent requests of mixed lengths: our sampler against transformers' `generate`.

Both decode greedily, on one thread, and take turns in one process. `generate` gets its best static batches: requests
sorted by the tokens they want, in batches of the size that turned out fastest; a batch runs until its longest request
is done, and only the tokens that were asked for are counted. The tokens must be the same, or of likelihoods within
1e-5 nats where they first differ. The ratio is our throughput over that of `generate`: median over the rounds, and a
95 % bootstrap interval of it.

    python bench/sampler.py [--rounds 15] [--requests 64]
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import parse_arguments, print_result, timed
from tiny_model import write_model
from transformers import AutoModelForCausalLM, logging

from mappa_core.protocols import PolicySpec
from mappa_core.records import Completion, Int32, Sampling
from mappa_engine.local import LocalEngine
from mappa_engine.options import LocalOptions

STATIC_BATCHES = (8, 16, 32, 64)
TIE = 1e-5
Request = tuple[Int32, int]
"""A prompt and the tokens that it wants."""


def requests(vocabulary: int, count: int, seed: int = 0) -> list[Request]:
    """Prompts of 20 to 160 tokens; actions of 4 to 192 tokens, most of them short."""
    random = np.random.default_rng(seed)
    prompts = random.integers(20, 161, count)
    wanted = np.clip(random.lognormal(3.5, 0.8, count), 4, 192).astype(int)
    return [
        (random.integers(7, vocabulary, length).astype(np.int32), int(tokens))
        for length, tokens in zip(prompts, wanted, strict=True)
    ]


async def ours(engine: LocalEngine, work: list[Request]) -> list[Completion]:
    """All requests at once."""
    sampler = engine.sampler("policy")
    return await asyncio.gather(
        *(sampler.sample(prompt, Sampling(temperature=0.0, max_tokens=tokens)) for prompt, tokens in work)
    )


@torch.inference_mode()
def generate(model: Any, work: list[Request], size: int, pad: int) -> list[list[int]]:
    """The tokens of all requests by static batches of `size`, in the order of `work`."""
    order = sorted(range(len(work)), key=lambda index: work[index][1])
    found: list[list[int]] = [[]] * len(work)
    for start in range(0, len(order), size):
        members = order[start : start + size]
        width = max(len(work[index][0]) for index in members)
        ids = torch.full((len(members), width), pad)
        mask = torch.zeros_like(ids)
        for row, index in enumerate(members):
            prompt = torch.from_numpy(work[index][0])
            ids[row, width - len(prompt) :], mask[row, width - len(prompt) :] = prompt, 1
        longest = max(work[index][1] for index in members)
        out = model.generate(ids, attention_mask=mask, max_new_tokens=longest, do_sample=False, pad_token_id=pad)
        for row, index in enumerate(members):
            found[index] = _until_end(out[row, width:].tolist()[: work[index][1]], model.generation_config.eos_token_id)
    return found


def _until_end(tokens: list[int], end: int) -> list[int]:
    return tokens[: tokens.index(end) + 1] if end in tokens else tokens


@torch.inference_mode()
def differing(model: Any, work: list[Request], a: list[list[int]], b: list[list[int]]) -> int:
    """Requests whose tokens differ; a first difference that is no tie within TIE nats ends the benchmark."""
    count = 0
    for (prompt, _), one, other in zip(work, a, b, strict=True):
        if one == other:
            continue
        count += 1
        place = next(i for i, (x, y) in enumerate(zip(one, other, strict=False)) if x != y)
        ids = torch.tensor([*prompt.tolist(), *one[:place]])[None]
        logprobs = torch.log_softmax(model(input_ids=ids).logits[0, -1], dim=-1)
        gap = abs(float(logprobs[one[place]] - logprobs[other[place]]))
        if gap > TIE:
            raise SystemExit(f"greedy tokens differ by {gap:.2g} nats: not a tie")
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--requests", type=int, default=64)
    given = parse_arguments(parser, rounds=1, requests=8)
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(compare(write_model(Path(folder)), given.requests, given.rounds))


def _tokens(completion: Completion) -> list[int]:
    assert completion.tokens is not None
    return list(map(int, completion.tokens))


async def compare(spec: str, count: int, rounds: int) -> None:
    engine = LocalEngine(LocalOptions(device="cpu"))
    await engine.open([PolicySpec(name="policy", model=spec, kind="frozen")], None, seed=0)
    model = AutoModelForCausalLM.from_pretrained(spec).eval()
    work, pad = requests(model.config.vocab_size, count), model.config.pad_token_id
    sizes = [size for size in STATIC_BATCHES if size <= count]
    best = min(sizes, key=lambda size: min(timed(generate, model, work, size, pad) for _ in range(3)))
    mine = [_tokens(completion) for completion in await ours(engine, work)]
    theirs = generate(model, work, best, pad)
    tokens, ties = sum(map(len, mine)), differing(model, work, mine, theirs)
    our_seconds, their_seconds = [], []
    for _ in range(rounds):
        begun = time.perf_counter()
        await ours(engine, work)
        our_seconds.append(time.perf_counter() - begun)
        their_seconds.append(timed(generate, model, work, best, pad))
    await engine.close()
    ratios = np.array(their_seconds) / np.array(our_seconds) * tokens / sum(map(len, theirs))
    print(f"{count} requests, {tokens} tokens, {rounds} rounds; {ties} requests differ, by ties alone")
    print(f"ours      {tokens / np.median(our_seconds):8.0f} tokens/s")
    print(f"generate  {tokens / np.median(their_seconds):8.0f} tokens/s in static batches of {best}")
    print_result("sampler", ratios, unit="our tokens/s over theirs", against=f"transformers generate, batch {best}")


if __name__ == "__main__":
    main()
