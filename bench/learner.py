"""One update of one policy: ours against a plain torch loop that does the same arithmetic.

96 actions of 6 to 30 tokens after prompts of 40 to 110, none joined: one clipped PPO step with AdamW, in float32 on one
thread. The plain loop pads the same rows to the right, sends the same hidden states through the head, and has its own
copy of the weights; after the first step both must agree. They take turns in one process. The ratio is our time over
the plain loop's: median over the rounds, and a 95 % bootstrap interval of it.

    python bench/learner.py [--rounds 21] [--rows 96]
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from measure import parse_arguments, print_result
from safetensors.torch import load_file
from tiny_model import write_model
from transformers import AutoModelForCausalLM, logging

from mappa_core.config.schema import TrainSection
from mappa_core.experience import Advantages, Experience
from mappa_core.protocols import PolicySpec
from mappa_engine.checkpoint import WEIGHTS_FILE
from mappa_engine.local import LocalEngine
from mappa_engine.losses import PPOLoss
from mappa_engine.options import LocalOptions, PPOOptions

ROWS, VOCABULARY, CLIP = 96, 260, 0.2
TRAIN = TrainSection(iterations=1000, learning_rate=1e-4)


def experience(row_count: int, seed: int = 0) -> Experience:
    """Random actions, each of a trajectory of its own."""
    random = np.random.default_rng(seed)
    prompts, actions = random.integers(40, 111, row_count), random.integers(6, 31, row_count)
    rows, zeros = np.arange(row_count, dtype=np.int32), np.zeros(row_count, np.int32)
    return Experience(
        agents=("solver",),
        policies=("policy",),
        trajectories=tuple(map(str, rows)),
        tasks=("task",),
        strata=("all",),
        steps=tuple(map(str, rows)),
        agent=zeros,
        policy=zeros,
        trajectory=rows,
        task=zeros,
        group=zeros,
        stratum=zeros,
        position=zeros,
        turn=zeros,
        truncated=np.zeros(row_count, np.bool_),
        temperature=np.ones(row_count, np.float32),
        outcome=np.ones(row_count, np.float32),
        reward=np.ones(row_count, np.float32),
        weight=np.ones(row_count, np.float32),
        tokens=random.integers(7, VOCABULARY, actions.sum()).astype(np.int32),
        offsets=np.concatenate([[0], np.cumsum(actions)]),
        version=np.zeros(actions.sum(), np.int32),
        logprobs=np.zeros(actions.sum(), np.float32),
        prompt_tokens=random.integers(7, VOCABULARY, prompts.sum()).astype(np.int32),
        prompt_offsets=np.concatenate([[0], np.cumsum(prompts)]),
    )


class Plain:
    """What one would write by hand for this one case."""

    def __init__(self, spec: str) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(spec).eval()
        self.adam = torch.optim.AdamW(
            self.model.parameters(),
            lr=TRAIN.learning_rate,
            betas=TRAIN.betas,
            weight_decay=TRAIN.weight_decay,
            fused=True,
        )

    def update(self, scored: Experience, advantages: Advantages) -> None:
        prompts = np.split(scored.prompt_tokens, scored.prompt_offsets[1:-1])
        actions = np.split(scored.tokens, scored.offsets[1:-1])
        width = max(len(prompt) + len(action) for prompt, action in zip(prompts, actions, strict=True))
        ids = torch.zeros((len(prompts), width), dtype=torch.long)
        mask = torch.zeros(ids.shape, dtype=torch.bool)
        for row, (prompt, action) in enumerate(zip(prompts, actions, strict=True)):
            end = len(prompt) + len(action)
            ids[row, :end] = torch.from_numpy(np.concatenate([prompt, action]))
            mask[row, len(prompt) - 1 : end - 1] = True
        logits = self.model.lm_head(self.model.model(input_ids=ids, use_cache=False).last_hidden_state[mask])
        new = -torch.nn.functional.cross_entropy(logits, torch.from_numpy(scored.tokens).long(), reduction="none")
        assert scored.old_logprobs is not None
        advantage = torch.from_numpy(advantages.advantages)
        ratio = torch.exp(new - torch.from_numpy(scored.old_logprobs))
        loss = -torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage).mean()
        self.adam.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), TRAIN.grad_clip)
        self.adam.step()


async def compare(spec: str, row_count: int, rounds: int) -> None:
    engine, plain = LocalEngine(LocalOptions(device="cpu")), Plain(spec)
    await engine.open([PolicySpec(name="policy", model=spec)], TRAIN, seed=0)
    loss = PPOLoss(PPOOptions(clip_low=CLIP, clip_high=CLIP))
    scored = await engine.score(experience(row_count))
    assert scored.old_logprobs is not None
    scored = replace(scored, logprobs=scored.old_logprobs)  # as sampled by the same weights
    drawn = np.random.default_rng(1).normal(size=len(scored.tokens)).astype(np.float32)
    advantages = Advantages(advantages=drawn)
    ours, theirs = [], []
    for number in range(rounds + 1):
        begun = time.perf_counter()
        await engine.update(scored, advantages, loss, 0.0)
        ours.append(time.perf_counter() - begun)
        begun = time.perf_counter()
        plain.update(scored, advantages)
        theirs.append(time.perf_counter() - begun)
        if number == 0:
            await check(engine, plain)
    await engine.close()
    ratios = np.array(ours[1:]) / np.array(theirs[1:])
    tokens = len(scored.tokens) + len(scored.prompt_tokens)
    print(f"{row_count} actions, {len(scored.tokens)} sampled of {tokens} tokens")
    print(f"ours   {np.median(ours[1:]) * 1e3:7.1f} ms a step, of {rounds}")
    print(f"plain  {np.median(theirs[1:]) * 1e3:7.1f} ms a step")
    print_result("learner", ratios, unit="our time over theirs", against="plain torch loop")


async def check(engine: LocalEngine, plain: Plain) -> None:
    """Both have the same weights after one step."""
    with tempfile.TemporaryDirectory() as folder:
        await engine.save(Path(folder))
        exported = load_file(Path(folder, "policy", WEIGHTS_FILE))
    gap = max(float((one - exported[name]).abs().max()) for name, one in plain.model.named_parameters())
    if gap > TRAIN.learning_rate / 10:
        raise SystemExit(f"the weights differ by {gap:.2g} after one step: not the same arithmetic")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--rows", type=int, default=ROWS)
    given = parse_arguments(parser, rounds=1, rows=8)
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(compare(write_model(Path(folder)), given.rows, given.rounds))


if __name__ == "__main__":
    main()
