"""Seconds of a publish, against vLLM's own `reload_weights` fed with the same tensors that already lie in its process.

Ours: a rank of DeepSpeed (ZeRO-2, float32) fills buckets, Ray's object store takes them to a process of its own, vLLM
loads them there while the next ones are filled, every tensor is checked by its checksum at both ends, and the engine
goes on. That is once timed as it is, and once with the probe, in which learner and sampler compute some tokens.

Theirs: the load alone, timed where it happens, in a process that allocates memory as glibc does by itself. Beside it:
the same load in our sampler, which has huge pages, and copying the same bytes once from memory to memory.

All take turns in one run. The ratio is a publish without its probe by their load, median over the rounds with a 95 %
bootstrap interval, of the model of 60 million parameters; every row has its own, what the probe adds is printed, and
what its parts take when nothing else runs. Models have random weights; the largest, of bfloat16, takes 12 GB
of memory.

    make bench, or: .venv-cluster/bin/python bench/sync.py [--rounds 11] [--quick]

`--quick` has the smallest model and one round.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

# Libraries read it when they are imported, in this process as in every actor.
os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import torch
from measure import median_interval, print_result, timed
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM, logging

from mappa_core.config.schema import TrainSection
from mappa_core.protocols import PolicySpec
from mappa_engine.cluster.actors import Actor, RayActors
from mappa_engine.cluster.learners import LearnerConfig, LearnerGroup
from mappa_engine.cluster.samplers import remote_engine
from mappa_engine.cluster.samplers.messages import SamplerConfig
from mappa_engine.cluster.samplers.pool import SamplerPool
from mappa_engine.cluster.samplers.server import THREADS, SamplerServer
from mappa_engine.cluster.sync.buckets import Bucket, ReceivedBucket, ReceivedTensors
from mappa_engine.cluster.sync.probe import MAX_MEAN_NATS
from mappa_engine.cluster.sync.publisher import Publisher, WeightRoute
from mappa_engine.model_info import read_model_info, read_weight_names
from mappa_engine.options import PlacedOptions

WINDOW = 512
TIED = {"model.embed_tokens.weight": "lm_head.weight"}


@dataclass(frozen=True, kw_only=True)
class Row:
    """A model: width, layers, vocabulary and dtype."""

    hidden: int
    layers: int
    vocabulary: int
    dtype: str = "float32"


SMALL = Row(hidden=256, layers=4, vocabulary=8_000)
MIDDLE = Row(hidden=512, layers=14, vocabulary=32_000)
LARGE = Row(hidden=1024, layers=28, vocabulary=151_936, dtype="bfloat16")
"""The shape of Qwen3-0.6B."""


class Server(SamplerServer):
    """A sampler that also does what ours is measured against."""

    def keep(self, *buckets: Bucket) -> None:
        """Copy these tensors into this process."""
        self.kept = [
            (name, tensor.clone()) for name, tensor in ReceivedTensors(TIED).tensors(map(ReceivedBucket.of, buckets))
        ]
        self.room = [(tensor, torch.zeros_like(tensor)) for name, tensor in self.kept if name not in TIED.values()]

    def reload(self) -> float:
        """Seconds in which vLLM loads them."""
        return self._step_loop.run(timed, self._vllm.reload_weights, self.kept)

    def check(self, *buckets: Bucket) -> float:
        """Seconds in which the checksums of buckets are computed."""
        return timed(lambda: [ReceivedBucket.of(bucket) for bucket in buckets])

    def copy(self) -> float:
        """Seconds in which the same bytes are copied to memory that is in use already."""
        return self._step_loop.run(timed, _copy, self.room)


def _copy(room: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    for tensor, place in room:
        place.copy_(tensor)


def write_model(folder: Path, row: Row) -> tuple[str, int]:
    """A Qwen3 with random weights and hardly a tokenizer: its folder and how many parameters it has."""
    logging.disable_progress_bar()
    config = Qwen3Config(
        vocab_size=row.vocabulary,
        hidden_size=row.hidden,
        intermediate_size=3 * row.hidden,
        num_hidden_layers=row.layers,
        num_attention_heads=row.hidden // 64,
        num_key_value_heads=row.hidden // 128,
        head_dim=64,
        max_position_embeddings=WINDOW,
        tie_word_embeddings=True,
        eos_token_id=1,
    )
    model = Qwen3ForCausalLM(config).to(getattr(torch, row.dtype))
    model.save_pretrained(folder)
    words = Tokenizer(models.WordLevel({"a": 0, "</s>": 1}, unk_token="a"))
    template = "{% for message in messages %}{{ message.content }}{% endfor %}</s>"
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="</s>", chat_template=template).save_pretrained(folder)
    return str(folder), model.num_parameters()


async def compare(ray_actors: RayActors, model: str, dtype: str, rounds: int) -> np.ndarray:
    """Seconds of each round (rounds, 7): a publish with its probe, one without, a load in a process of theirs, one in
    our sampler, a copy; of a publish, filling buckets and putting them into Ray's store, and checking them where they
    are loaded, each alone."""
    options = PlacedOptions(zero=2)
    task = LearnerConfig(
        specs=(PolicySpec(name="policy", model=model),),
        train=TrainSection(),
        options=options,
        dtype=dtype,
        gpu=False,
        seed=0,
    )
    setup = SamplerConfig(
        model=model, device="cpu", dtype=dtype, window=WINDOW, kv_cache_bytes=64 << 20, max_batch=16, tied=TIED
    )
    deadlines = remote_engine.Deadlines(start_s=options.start_s, sync_s=options.sync_s, call_s=options.call_s)
    group = await LearnerGroup.open("learners", ray_actors, task, slots=[None])
    pool = SamplerPool(
        ray_actors,
        setup,
        [remote_engine.EngineResources()],
        name="policy",
        full=True,
        deadlines=deadlines,
        refresh=lambda name: nothing(),
    )
    await pool.open()
    route = WeightRoute(
        policy="policy",
        learners=group,
        samplers=pool,
        tensors=read_weight_names(read_model_info(model)).names,
        tied=TIED,
        probe_limit=MAX_MEAN_NATS[dtype],
        vocabulary=setup.window,
        window=WINDOW,
    )
    verified, handed = (
        Publisher([one], seed=0, deadline_s=options.sync_s) for one in (route, replace(route, probe_limit=None))
    )
    (engine,) = pool.engines
    theirs = await start_theirs(ray_actors, setup, deadline_s=options.start_s)

    async def call(actor: Actor, method: str, *arguments: object) -> Any:
        return await ray_actors.wait_for(actor.call(method, *arguments), deadline_s=options.sync_s, what=method)

    async def fill() -> list[object]:
        return [bucket async for bucket in group.weights("policy", 0)]

    for actor in (engine.actor, theirs):
        await call(actor, "keep", *await fill())
    found = []
    for number in range(1 + rounds):  # the first one warms up
        versions = {"policy": number}
        found.append(
            [
                await clocked(verified.publish(versions)),
                await clocked(handed.publish(versions)),
                await call(theirs, "reload"),
                await call(engine.actor, "reload"),
                await call(theirs, "copy"),
                await clocked(fill()),
                await call(engine.actor, "check", *await fill()),
            ]
        )
    await ray_actors.end(theirs)
    await pool.close()
    await group.close()
    return np.array(found[1:])


async def start_theirs(ray_actors: RayActors, setup: SamplerConfig, *, deadline_s: float) -> Actor:
    """Start what ours is measured against: the same engine, without our allocation of memory."""
    environment = remote_engine.vllm_environment(setup.device, setup.dtype)
    return await ray_actors.start(
        Server,
        setup,
        paused=True,
        name="theirs",
        role="sampler",
        deadline_s=deadline_s,
        threads=THREADS,
        environment={name: environment[name] for name in environment.keys() - remote_engine.HUGE_PAGES.keys()},
    )


async def nothing() -> None:
    """No engine is lost here."""


async def clocked(work: Awaitable[object]) -> float:
    begun = time.perf_counter()
    await work
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--quick", action="store_true", help="the smallest model, one round")
    chosen = parser.parse_args()
    vars(remote_engine)["SamplerServer"] = Server
    rows, rounds, reported = ((SMALL,), 1, SMALL) if chosen.quick else ((SMALL, MIDDLE, LARGE), chosen.rounds, MIDDLE)
    with tempfile.TemporaryDirectory() as folder:
        ratios = asyncio.run(compare_all(Path(folder), rows, rounds))
    print_result(
        "sync", ratios[reported], unit="seconds of a publish over theirs", against="vLLM reload_weights in its process"
    )


async def compare_all(folder: Path, rows: Sequence[Row], rounds: int) -> dict[Row, np.ndarray]:
    """The ratios of every model."""
    ray_actors = await RayActors.open(cpus=8, gpus=0, store_mb=2500, deadline_s=240)
    ratios = {}
    try:
        for row in rows:
            model, parameters = write_model(folder / f"hidden-{row.hidden}", row)
            seconds = await compare(ray_actors, model, row.dtype, rounds)
            ratios[row] = seconds[:, 1] / seconds[:, 2]
            middle, low, high = median_interval(ratios[row])
            verified, handed, load, own, copy, filled, checked = np.median(seconds, axis=0)
            print(f"{parameters / 1e6:.0f} M parameters of {row.dtype} ({row.layers} layers), {rounds} rounds; medians")
            print(f"  publish {handed:7.3f} s = {middle:.2f} x a load [{low:.2f}, {high:.2f}]")
            print(f"  probed  {verified:7.3f} s")
            print(f"  load    {load:7.3f} s in theirs, {own:.3f} s in ours")
            for name, pair in (("publish by our load", (1, 3)), ("our load by theirs", (3, 2))):
                middle, low, high = median_interval(seconds[:, pair[0]] / seconds[:, pair[1]])
                print(f"  {name} {middle:.2f} x [{low:.2f}, {high:.2f}]")
            print(f"  copy    {copy:7.3f} s: a publish is {handed / copy:.0f} x, a load {load / copy:.0f} x a copy")
            print(
                f"  parts   {filled:7.3f} s to fill buckets and put them into the store, {checked:.3f} s to check them"
            )
    finally:
        await ray_actors.close()
    return ratios


if __name__ == "__main__":
    main()
