"""The memory that the engine `local` plans is that of its tensors."""

from __future__ import annotations

import pytest
import torch

from mappa_core.engine import Lora, PolicySpec, TrainSection
from mappa_engine import memory_estimate
from mappa_engine.local import LocalEngine
from mappa_engine.local.memory import estimate_local_memory
from mappa_engine.model_shape import read_shape
from mappa_engine.options import LocalOptions

TRAIN = TrainSection()
BOUNDS = {"micro_tokens": TRAIN.micro_tokens, "rows": 256}
TINY = "package:mappa_engine/models/tiny"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["full", "lora"])
async def test_tensor_bytes_of_the_local_engine_are_those_of_its_tensors(kind, dtype):
    names = ("problem_solver", "code_executor", "verifier")
    lora = Lora(rank=8, alpha=16.0) if kind == "lora" else None
    specs = [PolicySpec(name=name, model=TINY, kind=kind, lora=lora) for name in names]
    engine = LocalEngine(LocalOptions(device="cpu", dtype=dtype))
    await engine.open(specs, TRAIN, seed=0)
    measured: dict[int, torch.Tensor] = {}
    try:
        for policy in engine._policies.values():
            optimiser = policy.optimiser
            with policy.active():
                policy.model(input_ids=torch.arange(9)[None]).logits.float().logsumexp(-1).sum().backward()
            optimiser.accumulate()
            # A step lets go of gradients, so they are looked at before it.
            masters = list(optimiser._masters.values())
            own = [*policy.model.parameters(), *policy.base.model.parameters(), *masters]
            gradients = [one.grad for one in masters]
            assert all(one is not None for one in gradients)
            optimiser.grad_norm()
            optimiser.step(1e-3)
            moments = [one for state in optimiser._adam.state.values() for one in state.values()]
            measured |= {one.data_ptr(): one for one in (*own, *gradients, *moments)}
    finally:
        await engine.close()
    counted = sum(one.numel() * one.element_size() for one in measured.values())
    shapes = {TINY: read_shape(TINY)}
    found = estimate_local_memory(specs, shapes, LocalOptions(dtype=dtype), **BOUNDS)
    states = ("weights", "gradients", "optimiser", "reference")
    predicted = sum(size for parts in found.values() for part, size in parts.items() if part in states)
    assert predicted == pytest.approx(counted, rel=0.2)


def test_frozen_policies_share_what_the_others_start_from():
    shapes = {TINY: read_shape(TINY)}
    size = memory_estimate.weight_bytes(shapes[TINY], "float32")
    learner, judge = PolicySpec(name="a", model=TINY), PolicySpec(name="b", model=TINY, kind="frozen")
    found = estimate_local_memory((learner, judge), shapes, LocalOptions(), **BOUNDS)
    assert found[""]["reference"] == size and "weights" not in found["b"]
    watched = estimate_local_memory((learner,), shapes, LocalOptions(), micro_tokens=None, rows=256)
    assert watched["a"]["weights"] == size and watched[""].keys() == {"workspace"}


def test_the_plan_bounds_keys_and_values_and_activations_by_the_options():
    shape = read_shape(TINY)
    learner = PolicySpec(name="a", model=TINY)

    def planned(**options):
        given = LocalOptions(**options)
        return estimate_local_memory((learner,), {TINY: shape}, given, micro_tokens=64, rows=100)

    token = 4 * shape.kv_per_token
    assert planned(max_model_len=50)["a"]["kv cache"] == 100 * 50 * token
    assert planned(max_model_len=50, max_batch=9)["a"]["kv cache"] == 9 * 50 * token
    assert planned(kv_cache_mb=3)["a"]["kv cache"] == 3 << 20 < 100 * shape.window * token
    activations = [planned(gradient_checkpointing=one)[""]["activations"] for one in (False, True)]
    assert activations[1] < 0.7 * activations[0]
    assert planned(max_model_len=50)[""]["activations"] == memory_estimate.activation_bytes(shape, "float32", 64)
