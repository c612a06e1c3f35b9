"""The reference of a policy that starts from another run: the weights that it starts with."""

from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file

from mappa_core import Advantages
from mappa_core.engine import Lora, PolicySpec, TrainSection
from mappa_engine import memory_estimate
from mappa_engine.checkpoint import REFERENCE_FOLDER, WEIGHTS_FILE
from mappa_engine.local.memory import estimate_local_memory
from mappa_engine.losses import PPOLoss
from mappa_engine.model_shape import read_shape
from mappa_engine.options import LocalOptions, PPOOptions

TRAIN = TrainSection(iterations=10, learning_rate=1e-2)
"""One optimiser step an iteration, whose passes still have the weights that were scored."""
LORA = Lora(rank=4, alpha=8.0)
ADAPTER = {"kind": "lora", "lora": LORA}


async def learn(engine, kit, seed: int = 0, name: str = "solver"):
    """Take a step on drawn rows; return what was scored before it, and its metrics."""
    scored = await engine.score(kit.experience(kit.rows(6, seed, policy=name), (name,)))
    drawn = np.random.default_rng(seed).normal(size=len(scored.tokens)).astype(np.float32)
    metrics = await engine.update(scored, Advantages(advantages=drawn), PPOLoss(PPOOptions()), 0.0)
    await engine.publish()
    return scored, metrics[name]


@pytest.fixture(params=["full", "lora"])
def kind(request) -> dict:
    return ADAPTER if request.param == "lora" else {"kind": "full"}


@pytest.fixture
async def start(qwen3, opened, kit, tmp_path, kind):
    """Folder of a policy that was trained, with a value head, and what it scores."""
    engine = await opened(
        qwen3, train=TRAIN, policies=[PolicySpec(name="solver", model=qwen3, value_head=True, **kind)]
    )
    await learn(engine, kit)
    await engine.save(tmp_path / "first")
    scored = await engine.score(kit.experience(kit.rows(6, 1)))
    return tmp_path / "first" / "solver", scored


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_a_policy_is_at_no_distance_from_what_it_starts_from(qwen3, opened, kit, kind, start, dtype):
    folder, trained = start
    spec = PolicySpec(name="solver", model=qwen3, start=folder, reference=folder, **kind)
    engine = await opened(qwen3, train=TRAIN, policies=[spec], dtype=dtype)
    scored, metrics = await learn(engine, kit, 1)
    assert scored.ref_logprobs.tobytes() == scored.old_logprobs.tobytes()
    assert metrics["kl"] == pytest.approx(0.0, abs=1e-6)
    if dtype == "float32":
        np.testing.assert_allclose(scored.ref_logprobs, trained.old_logprobs, atol=1e-6)
        assert np.abs(scored.ref_logprobs - trained.ref_logprobs).max() > 1e-3, "the start is the model itself"
    again, metrics = await learn(engine, kit, 1)
    assert again.ref_logprobs.tobytes() == scored.ref_logprobs.tobytes()
    assert metrics["kl"] > 1e-4


async def test_a_resumed_run_keeps_the_reference(qwen3, opened, kit, kind, start, tmp_path):
    folder, _ = start
    spec = PolicySpec(name="solver", model=qwen3, start=folder, reference=folder, **kind)
    engine = await opened(qwen3, train=TRAIN, policies=[spec])
    await learn(engine, kit, 1)
    await engine.save(tmp_path / "second")
    stored = tmp_path / "second" / "solver"
    shape = read_shape(qwen3)
    with_it, without = (
        memory_estimate.checkpoint_bytes(each, shape, "float32", computed="float32")
        for each in (spec, replace(spec, reference=None))
    )
    tensors = load_file(stored / REFERENCE_FOLDER / WEIGHTS_FILE).values()
    assert sum(tensor.nbytes for tensor in tensors) == with_it - without
    assert with_it == engine.checkpoint_bytes("float32")
    kept = PolicySpec(name="solver", model=qwen3, reference=stored / REFERENCE_FOLDER, **kind)
    resumed = await opened(qwen3, train=TRAIN, policies=[kept])
    await resumed.load(tmp_path / "second")
    (one, metrics), (other, expected) = await learn(resumed, kit, 2), await learn(engine, kit, 2)
    assert one.ref_logprobs.tobytes() == other.ref_logprobs.tobytes()
    assert metrics == expected
    # What starts from that checkpoint has its weights as a reference, not those of its reference.
    third = PolicySpec(name="solver", model=qwen3, start=stored, reference=stored, **kind)
    scored, _ = await learn(await opened(qwen3, train=TRAIN, policies=[third]), kit, 2)
    assert scored.ref_logprobs.tobytes() == one.old_logprobs.tobytes()


async def test_policies_beside_it_keep_the_model_as_their_reference(qwen3, opened, kit, kind, start):
    folder, trained = start
    other, judge = (
        PolicySpec(name="coder", model=qwen3, **ADAPTER),
        PolicySpec(name="judge", model=qwen3, kind="frozen"),
    )
    alone = await opened(qwen3, train=TRAIN, policies=[other, judge])
    spec = PolicySpec(name="solver", model=qwen3, start=folder, reference=folder, **kind)
    team = await opened(qwen3, train=TRAIN, policies=[spec, PolicySpec(name="whole", model=qwen3), other, judge])
    rows, whole = (kit.experience(kit.rows(6, 1, policy=name), (name,)) for name in ("coder", "whole"))
    for _ in range(2):
        scored = [await engine.score(rows) for engine in (alone, team)]
        assert scored[0].ref_logprobs.tobytes() == scored[1].ref_logprobs.tobytes()
        assert (await team.score(whole)).ref_logprobs.tobytes() == scored[0].ref_logprobs.tobytes()
        np.testing.assert_allclose(scored[0].ref_logprobs, trained.ref_logprobs, atol=1e-6)
        metrics = [(await learn(engine, kit, 1, "coder"))[1] for engine in (alone, team)]
        assert metrics[0] == metrics[1]
        await learn(team, kit, 1)


async def test_nothing_is_read_where_nothing_learns(qwen3, opened, kind, start, tmp_path):
    folder, _ = start
    spec = PolicySpec(name="solver", model=qwen3, start=folder, reference=tmp_path / "nowhere", **kind)
    engine = await opened(qwen3, policies=[spec])
    await engine.save(tmp_path / "second")
    assert not (tmp_path / "second" / "solver" / REFERENCE_FOLDER).exists()


def test_a_plan_counts_the_copies(qwen3, tmp_path):
    shape = read_shape(qwen3)
    whole, adapter = memory_estimate.weight_bytes(shape, "float32"), 4 * shape.adapter(LORA)

    def planned(*specs):
        found = estimate_local_memory(specs, {qwen3: shape}, LocalOptions(), train=TRAIN, rows=4, gpu=False)
        return sum(parts.get("reference", 0) for parts in found.values())

    plain, own = (PolicySpec(name=name, model=qwen3, reference=at) for name, at in (("a", None), ("b", tmp_path)))
    assert planned(plain) == planned(own) == whole, "alone it takes the place of the model"
    assert planned(plain, own) == 2 * whole
    adapted = PolicySpec(name="c", model=qwen3, reference=tmp_path, **ADAPTER)
    assert planned(adapted) == whole + adapter
    assert planned(own, adapted) == 2 * whole + adapter
