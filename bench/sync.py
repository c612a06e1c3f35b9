"""Seconds of a publish, against vLLM's own `reload_weights` fed with the same tensors that already lie in its process.

Ours: a rank of DeepSpeed (ZeRO-2, float32) fills buckets, Ray's object store takes them to a process of its own, vLLM
loads them there while the next ones are filled, every tensor is checked by its checksum at both ends, and the engine
goes on. That is once timed as it is, and once with the probe, in which learner and sampler compute some tokens.

Theirs: the load alone, timed where it happens. Beside it: copying the same bytes once from memory to memory there.

All take turns in one run. The ratio is a publish without its probe by a load, median over the rounds with a 95 %
bootstrap interval, of the larger model; what the probe adds is printed. Models have random weights.

    make bench, or: .venv-cluster/bin/python bench/sync.py [--rounds 11]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable
from dataclasses import replace
from pathlib import Path

# Libraries read it when they are imported, in this process as in every actor.
os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import torch
from measure import print_result
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM, logging

from mappa_core.config.schema import TrainSection
from mappa_core.protocols import PolicySpec
from mappa_engine.cluster.actors import RayActors
from mappa_engine.cluster.learners import LearnerConfig, LearnerGroup
from mappa_engine.cluster.samplers import remote_engine
from mappa_engine.cluster.samplers.messages import SamplerConfig
from mappa_engine.cluster.samplers.pool import SamplerPool
from mappa_engine.cluster.samplers.server import SamplerServer
from mappa_engine.cluster.sync.buckets import Bucket, ReceivedBucket, ReceivedTensors
from mappa_engine.cluster.sync.probe import ProbeLimit
from mappa_engine.cluster.sync.publisher import Publisher, WeightRoute
from mappa_engine.model_info import read_model_info, read_weight_names
from mappa_engine.options import PlacedOptions

WINDOW = 512
TIED = {"model.embed_tokens.weight": "lm_head.weight"}
SHAPES = {"hidden 256, 4 layers": (256, 4, 8_000), "hidden 512, 14 layers": (512, 14, 32_000)}
"""Width, layers and vocabulary."""


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
        return self._step_loop.run(_timed, self._vllm.reload_weights, self.kept)

    def copy(self) -> float:
        """Seconds in which the same bytes are copied to memory that is in use already."""
        return self._step_loop.run(_timed, _copy, self.room)


def _timed(work, *arguments) -> float:
    begun = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - begun


def _copy(room: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    for tensor, place in room:
        place.copy_(tensor)


def write_model(folder: Path, hidden: int, layers: int, vocabulary: int) -> tuple[str, int]:
    """A Qwen3 with random weights and hardly a tokenizer: its folder and how many parameters it has."""
    logging.disable_progress_bar()
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 128,
        head_dim=64,
        max_position_embeddings=WINDOW,
        tie_word_embeddings=True,
        eos_token_id=1,
    )
    model = Qwen3ForCausalLM(config)
    model.save_pretrained(folder)
    words = Tokenizer(models.WordLevel({"a": 0, "</s>": 1}, unk_token="a"))
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="</s>").save_pretrained(folder)
    return str(folder), model.num_parameters()


async def compare(ray_actors: RayActors, model: str, rounds: int) -> np.ndarray:
    """Seconds of each round (rounds, 4): a publish with its probe, one without, a load, a copy."""
    options = PlacedOptions(zero=2)
    task = LearnerConfig(
        specs=(PolicySpec(name="policy", model=model),),
        train=TrainSection(),
        options=options,
        dtype="float32",
        gpu=False,
        seed=0,
    )
    setup = SamplerConfig(
        model=model, device="cpu", dtype="float32", window=WINDOW, kv_cache_bytes=64 << 20, max_batch=16, tied=TIED
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
        probe_limit=ProbeLimit.of("float32", None),
        vocabulary=setup.window,
        window=WINDOW,
    )
    verified, handed = (
        Publisher([one], seed=0, deadline_s=options.sync_s) for one in (route, replace(route, probe_limit=None))
    )
    (engine,) = pool.engines

    async def there(method: str, *arguments: object) -> float:
        return await ray_actors.wait_for(engine.actor.call(method, *arguments), deadline_s=options.sync_s, what=method)

    await there("keep", *[bucket async for bucket in group.weights("policy", 0)])
    found = []
    for number in range(1 + rounds):  # the first one warms up
        versions = {"policy": number}
        found.append(
            [
                await clocked(verified.publish(versions)),
                await clocked(handed.publish(versions)),
                await there("reload"),
                await there("copy"),
            ]
        )
    await pool.close()
    await group.close()
    return np.array(found[1:])


async def nothing() -> None:
    """No engine is lost here."""


async def clocked(work: Awaitable[object]) -> float:
    begun = time.perf_counter()
    await work
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=11)
    rounds = parser.parse_args().rounds
    remote_engine.SamplerServer = Server
    with tempfile.TemporaryDirectory() as folder:
        ratios = asyncio.run(compare_all(Path(folder), rounds))
    print_result("sync", ratios, unit="seconds of a publish over theirs", against="vLLM reload_weights in its process")


async def compare_all(folder: Path, rounds: int) -> np.ndarray:
    """The ratios of the last model."""
    ray_actors = await RayActors.open(cpus=8, gpus=0, store_mb=500, deadline_s=240)
    try:
        for name, shape in SHAPES.items():
            model, parameters = write_model(folder / name.replace(" ", "-"), *shape)
            seconds = await compare(ray_actors, model, rounds)
            verified, handed, load, copy = np.median(seconds, axis=0)
            print(f"{parameters / 1e6:.0f} M parameters ({name}), {rounds} rounds; medians")
            print(f"  publish {handed:7.3f} s, with its probe {verified:.3f} s ({verified / load:.2f} x a load)")
            print(f"  load    {load:7.3f} s")
            print(f"  copy    {copy:7.3f} s: a publish is {handed / copy:.0f} x, a load {load / copy:.0f} x a copy")
    finally:
        await ray_actors.close()
    return seconds[:, 1] / seconds[:, 2]


if __name__ == "__main__":
    main()
