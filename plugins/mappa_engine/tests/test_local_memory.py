"""The memory that the engine `local` plans is that of its tensors."""

from __future__ import annotations

import pytest
import torch
from structlog.testing import capture_logs

from mappa_core import ConfigError
from mappa_core.engine import Lora, PolicySpec, TrainSection
from mappa_engine import memory_estimate
from mappa_engine.local import LocalEngine
from mappa_engine.local.memory import check_memory, estimate_local_memory, expected_local_memory, memory_plan
from mappa_engine.model_shape import ModelShape, read_shape
from mappa_engine.node import Gpu, Node
from mappa_engine.options import LocalOptions

TRAIN = TrainSection()
BOUNDS = {"train": TRAIN, "rows": 256, "gpu": False}
TINY = "package:mappa_engine/models/tiny"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["full", "lora"])
async def test_planned_states_are_those_of_the_engines_tensors(kind, dtype):
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
            gradients = [master.grad for master in masters]
            assert all(gradient is not None for gradient in gradients)
            optimiser.grad_norm()
            optimiser.step(1e-3)
            moments = [moment for state in optimiser._adam.state.values() for moment in state.values()]
            measured |= {tensor.data_ptr(): tensor for tensor in (*own, *gradients, *moments)}
    finally:
        await engine.close()
    counted = sum(tensor.numel() * tensor.element_size() for tensor in measured.values())
    shapes = {TINY: read_shape(TINY)}
    found = estimate_local_memory(specs, shapes, LocalOptions(dtype=dtype), **BOUNDS)
    states = ("weights", "gradients", "optimiser", "reference")
    predicted = sum(size for parts in found.values() for part, size in parts.items() if part in states)
    assert predicted == pytest.approx(counted, rel=0.2)


def test_frozen_policies_share_the_reference():
    shapes = {TINY: read_shape(TINY)}
    size = memory_estimate.weight_bytes(shapes[TINY], "float32")
    learner, judge = PolicySpec(name="a", model=TINY), PolicySpec(name="b", model=TINY, kind="frozen")
    found = estimate_local_memory((learner, judge), shapes, LocalOptions(), **BOUNDS)
    assert found[""]["reference"] == size and "weights" not in found["b"]
    watched = estimate_local_memory((learner,), shapes, LocalOptions(), train=None, rows=256, gpu=False)
    assert watched["a"]["weights"] == size and watched[""].keys() == {"context", "workspace"}


def test_options_bound_kv_cache_and_activations():
    shape = read_shape(TINY)
    learner = PolicySpec(name="a", model=TINY)

    def planned(**options):
        given = LocalOptions(**options)
        return estimate_local_memory(
            (learner,), {TINY: shape}, given, train=TrainSection(micro_tokens=64), rows=100, gpu=False
        )

    token = 4 * shape.kv_per_token
    assert planned(max_model_len=50)["a"]["kv cache"] == 100 * 50 * token
    assert planned(max_model_len=50, max_batch=9)["a"]["kv cache"] == 9 * 50 * token
    assert planned(kv_cache_mb=3)["a"]["kv cache"] == 3 << 20 < 100 * shape.window * token
    activations = [planned(gradient_checkpointing=recompute)[""]["activations"] for recompute in (False, True)]
    assert activations[1] < 0.7 * activations[0]
    assert planned(max_model_len=50)[""]["activations"] == memory_estimate.activation_bytes(shape, "float32", 64) + (
        3 * 4 * 64 * shape.vocabulary
    )


MEMORY = {
    "a": {"weights": 4_000_000_000, "kv cache": 3_000_000_000},
    "": {"reference": 1_000_000_000, "activations": 2_000_000_000},
}


def node(memory: int, *, gpu: int | None = None) -> Node:
    gpus = () if gpu is None else (Gpu(name="a GPU", size=gpu, driver="580.1", capability=9.0),)
    return Node(
        gpus=gpus, memory=memory, shared_memory=0, nvcc=None, compiler=None, python_headers=True, cuda=None
    )  # fmt: skip


def test_plan_has_what_is_held_and_what_comes_on_top():
    plan = memory_plan(MEMORY, LocalOptions(), node(64 * 10**9))
    (table,) = plan.tables
    assert table == (
        ("memory", "a", "shared"),
        ("weights", "4.0 GB", ""),
        ("reference", "", "1.0 GB"),
        ("held", "4.0 GB", "1.0 GB"),
        ("kv cache", "3.0 GB", ""),
        ("activations", "", "2.0 GB"),
        ("at most", "7.0 GB", "3.0 GB"),
    )
    assert plan.lines == (
        "in all 5.0 GB are held, and at most 10.0 GB taken",
        "it fits this machine, which has 64.0 GB",
    )
    assert plan.notes == () and plan.details["problems"] == ()


def test_plan_notes_that_the_most_is_more_than_the_machine_has():
    plan = memory_plan(MEMORY, LocalOptions(), node(8 * 10**9))
    (note,) = plan.notes
    assert note.startswith("this machine has 8.0 GB of memory, and ") and "would take 10.0 GB" in note
    assert plan.details["problems"] == ()


def test_policies_that_the_machine_cannot_hold_are_a_problem():
    plan = memory_plan(MEMORY, LocalOptions(), node(4 * 10**9))
    (problem,) = plan.details["problems"]
    assert problem.startswith("engine: this machine has 4.0 GB of memory, and the policies hold 5.0 GB")
    assert plan.notes == ()


@pytest.mark.parametrize(("device", "problems"), [("auto", 1), ("cuda", 1), ("cpu", 0)])
def test_memory_is_that_of_the_gpu_where_there_is_one(device, problems):
    plan = memory_plan(MEMORY, LocalOptions(device=device), node(64 * 10**9, gpu=4 * 10**9))
    assert len(plan.details["problems"]) == problems


def test_plan_says_what_is_expected_beside_the_bound_and_whether_it_fits():
    plan = memory_plan(MEMORY, LocalOptions(), node(64 * 10**9), expected=6_500_000_000)
    assert plan.lines == (
        "in all 5.0 GB are held, about 6.5 GB expected at the peak, and at most 10.0 GB taken",
        "it fits this machine, which has 64.0 GB",
    )
    assert plan.details["expected"] == 6_500_000_000
    short = memory_plan(MEMORY, LocalOptions(), node(6 * 10**9), expected=6_500_000_000)
    assert short.lines[1] == "it does not fit this machine, which has 6.0 GB"
    (problem,) = short.details["problems"]
    assert problem.startswith("engine: this machine has 6.0 GB of memory, and about 6.5 GB are expected")
    assert "set train.micro_tokens to less" in problem


@pytest.mark.parametrize(
    ("size", "swap", "expected", "free", "warned"),
    [
        (64, 0, 6.5, 60, False),
        (64, 0, 6.5, 6, True),
        # Others may let go of what they have, and swap may hold what is not used: no refusal.
        (6, 0, 6.5, 5, True),
        (4, 2, 6.5, 3, True),
        (64, 0, None, 4, True),
        (64, 0, None, 6, False),
        (64, 0, 6.5, None, False),
    ],
)
def test_a_start_warns_of_what_is_expected_beyond_what_is_free(size, swap, expected, free, warned):
    def size_of(gigabytes):
        return None if gigabytes is None else int(gigabytes * 10**9)

    given = {"expected": size_of(expected), "free": size_of(free), "swap": size_of(swap)}
    said = check_memory(MEMORY, LocalOptions(), node(size * 10**9), **given)
    assert (said is not None) == warned
    if said is not None:
        assert said.startswith(f"about {expected or 5.0} GB of memory are expected at the peak, 5.0 GB of them for the")
        assert f"{free}.0 GB of {size}.0 GB are free now" in said and "set train.micro_tokens to less" in said


@pytest.mark.parametrize("gpu", [None, 4 * 10**9])
def test_a_start_is_refused_where_the_policies_alone_are_more_than_there_is(gpu):
    """On a GPU swap is of no help."""
    machine, swap = (node(4 * 10**9), 0) if gpu is None else (node(64 * 10**9, gpu=gpu), 64 * 10**9)
    with pytest.raises(ConfigError, match=r"has 4\.0 GB of memory, and the policies hold 5\.0 GB before anything is"):
        check_memory(MEMORY, LocalOptions(), machine, expected=None, free=None, swap=swap)


async def test_an_engine_that_opens_looks_at_what_is_free(monkeypatch):
    monkeypatch.setattr("mappa_engine.local.engine.free_memory", lambda: 100_000_000)
    spec = PolicySpec(name="a", model=TINY, actions=((100, 50),))
    engine = LocalEngine(LocalOptions(device="cpu"))
    with capture_logs() as logs:
        await engine.open([spec], TRAIN, seed=0)
    await engine.close()
    (said,) = [entry["event"] for entry in logs if entry["log_level"] == "warning"]
    assert "expected at the peak" in said and "100.0 MB of" in said


SHAPE = ModelShape(
    model="made", parameters=1_000_000, layers=2, hidden=64, intermediate=96, heads=4, kv_heads=2, head_dim=16,
    vocabulary=500, window=4096, tied=True, largest=32_000,
    linears=(("q_proj", 128), ("k_proj", 96), ("o_proj", 128), ("down_proj", 160)),
)  # fmt: skip
# Per token of a layer: two norms; queries, attention's output, keys and values; three of the MLP.
SAVED = 2 * 64 + 2 * 64 + 2 * 32 + 3 * 96


def expected_of(*actions, train=TRAIN, lora=None, gpu=False, **options):
    policy = PolicySpec(name="a", model="made", kind="lora" if lora else "full", lora=lora, actions=actions)
    given, shapes = LocalOptions(**options), {"made": SHAPE}
    memory = estimate_local_memory((policy,), shapes, given, train=train, rows=256, gpu=gpu)
    return expected_local_memory(memory, (policy,), shapes, given, train=train, rows=256, gpu=gpu)


def test_expected_memory_by_hand():
    # 3 prompts x 2 samples; the step has six rows of 150 tokens, 50 of them sampled; four fit a budget of 600.
    train = TrainSection(prompts=3, samples=2, micro_tokens=600)
    own = 2 * 4 * 600 * (SAVED + 4 * 64 + 96) + 3 * 4 * (4 * 50) * 500
    held = 4 * 4 * 1_000_000 + 4 * 1_000_000
    assert expected_of((100, 50), train=train) == held + int(1.8 * own) + 500_000_000
    assert expected_of((100, 50), train=train, gpu=True) == held + int(1.3 * own) + 750_000_000
    # Two rows a step: three steps.
    few = TrainSection(prompts=3, samples=2, micro_tokens=600, minibatch_rows=2)
    two = 2 * 4 * 300 * (SAVED + 4 * 64 + 96) + 3 * 4 * (2 * 50) * 500
    assert expected_of((100, 50), train=few) == held + int(1.8 * two) + 500_000_000


def test_expected_memory_of_an_adapter_by_hand():
    lora, train = Lora(rank=4, alpha=8.0), TrainSection(prompts=1, samples=1)
    # Queries and keys share what they are given; attention's output is counted anyway; the product goes down.
    passing = 2 * 4 * 150 * (SAVED + 64 + 96 + 4 * 4) + 3 * 4 * 50 * 500
    held = 4 * 4 * 4 * (128 + 96 + 128 + 160) + 4 * 1_000_000
    assert expected_of((100, 50), train=train, lora=lora) == held + int(1.8 * passing) + 500_000_000


def test_expected_memory_without_learning_is_that_of_decoding():
    # Keys and values of two layers with two heads of 16, of 256 rows; 24 bytes a logit.
    decoding = 256 * 150 * (2 * 2 * 2 * 16) * 4 + 256 * 500 * 24
    assert expected_of((100, 50), train=None) == 4 * 1_000_000 + decoding + 500_000_000


def test_memory_is_not_expected_where_the_lengths_of_actions_are_not_known():
    assert expected_of() is None
