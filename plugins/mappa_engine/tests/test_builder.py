"""What a placement becomes: how weights travel, and how much of a GPU each engine asks for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mappa_core import ConfigError
from mappa_core.engine import Lora, Machine, PolicySpec, TrainSection
from mappa_engine.cluster.placement import ModelShape, Resources, find_placement
from mappa_engine.cluster.setup import ClusterSetup
from mappa_engine.options import ClusterOptions

GB = 10**9
SHAPE = ModelShape(
    model="1.5b", parameters=1_540_000_000, layers=28, hidden=1536, intermediate=8960, heads=12, kv_heads=2,
    head_dim=128, vocabulary=151_936, window=32_768, tied=True, largest=151_936 * 1536, linears=(("q_proj", 3072),),
)  # fmt: skip
TEAM = tuple(PolicySpec(name=name, model="1.5b") for name in ("solver", "coder", "verifier"))
TRAIN = TrainSection(micro_tokens=4096)
ROOM = {"max_model_len": 8192, "kv_cache_mb": 4096, "gradient_checkpointing": True, "zero": 2, "samplers": 1}


def setup(gpus: int, gb: int = 141, policies=TEAM, train: TrainSection | None = TRAIN, **options) -> ClusterSetup:
    chosen = ClusterOptions(**{**ROOM, **options})
    nodes = (Machine(host="n0", cpus=16, gpus=gpus, gpu_bytes=gb * GB if gpus else 0),)
    placement = find_placement(policies, {"1.5b": SHAPE}, Resources(nodes=nodes), chosen, train=train)
    return ClusterSetup(
        specs={policy.name: policy for policy in policies},
        models={},
        weight_names={},
        shapes={"1.5b": SHAPE},
        placement=placement,
        options=placement.options,
        train=train,
        seed=0,
    )


def test_transport_follows_from_placement():
    assert setup(0).transport == "store"
    assert setup(8).transport == "ipc"
    assert setup(8, placement="separate").transport == "nccl"


def test_engines_that_get_weights_by_ipc_share_gpus_with_learners():
    fewer = setup(8, learner_ranks=4, samplers=2)
    (group,) = fewer.placement.groups
    assert {slot for pool in fewer.placement.pools for engine in pool.engines for slot in engine} <= set(group.slots)


@pytest.mark.parametrize(
    ("gpus", "options", "said"),
    [
        (
            8,
            {"transport": "store", "tensor_parallel": 2},
            "tensor_parallel=2: weights reach the pieces of an engine from",
        ),
        (0, {"tensor_parallel": 2}, "tensor_parallel=2: weights reach the pieces of an engine from GPU to GPU alone"),
        (0, {"transport": "nccl"}, "transport=nccl is between GPUs, and there are none"),
        (8, {"transport": "nccl"}, "transport=nccl needs engine.options.placement=separate"),
        (8, {"transport": "ipc", "placement": "separate"}, "transport=ipc needs engine.options.placement=colocated"),
    ],
)
def test_transports_that_reach_no_engine_are_refused(gpus, options, said):
    with pytest.raises(ConfigError) as refused:
        setup(gpus, **options)
    assert said in str(refused.value)


def test_given_transport_is_used_and_adapters_need_none():
    adapters = tuple(replace(policy, kind="lora", lora=Lora(rank=8, alpha=16.0)) for policy in TEAM)
    setup(8, policies=adapters, transport="store", tensor_parallel=2)
    assert setup(8, tensor_parallel=2).transport == setup(8, transport="ipc").transport == "ipc"
    assert setup(8, placement="separate", transport="nccl").transport == "nccl"


def test_without_learners_full_weights_refuse_tensor_parallel():
    """Nothing sends from GPU to GPU then; adapters are files, and a frozen model is read by each piece."""
    with pytest.raises(ConfigError, match=r"tensor_parallel=2: without learners .*mappa export.* kind frozen"):
        setup(8, train=None, tensor_parallel=2)
    adapters = tuple(replace(policy, kind="lora", lora=Lora(rank=8, alpha=16.0)) for policy in TEAM)
    for policies in (adapters, tuple(replace(policy, kind="frozen") for policy in TEAM)):
        setup(8, policies=policies, train=None, tensor_parallel=2)


def threads(setup: ClusterSetup) -> tuple[int, int]:
    """Threads of the first learner group, and of the first sampler pool."""
    (engine,) = setup.placement.pools[0].engines
    return setup.threads("learner", setup.placement.groups[0].slots), setup.threads("sampler", engine)


def test_actors_that_compute_at_the_same_time_share_the_cores_of_their_node():
    assert threads(setup(0)) == (16, 5)  # a learner group, or three engines
    assert threads(setup(0, max_staleness=1)) == (4, 4)
    assert threads(setup(0, learner_ranks=2)) == (8, 5)


def test_one_thread_where_sums_must_not_depend_on_cores_and_where_a_gpu_computes():
    assert threads(setup(0, deterministic=True)) == (1, 1)
    assert threads(setup(8)) == (1, 1)
    small = setup(0)
    assert threads(replace(small, shapes={"1.5b": replace(SHAPE, parameters=260_000)})) == (1, 1)


def test_actors_that_outnumber_the_cores_have_one_thread_each():
    few = setup(0)
    assert threads(replace(few, placement=replace(few.placement, cores={"n0": 2}))) == (2, 1)


def test_memory_shares_of_engines_on_one_gpu():
    one = setup(1)
    shares = [one.memory_share(pool, 0) for pool in one.placement.pools]
    assert len(shares) == 3
    (load,) = [load for load in one.placement.loads_on(0) if load.actor == "sampler solver"]
    parts = load.by_phase["sampling"]
    # Weights, and keys and values, by hand; the context is taken before vLLM looks.
    known = {"weights": 2 * 1_540_000_000, "kv cache": 4096 << 20}
    assert known.items() <= parts.items()
    others = parts["activations"] + parts["graphs"] + parts["workspace"]
    assert shares[0] == pytest.approx((sum(known.values()) + others) / (141 * GB))
    assert sum(shares) < 1.0
    assert setup(0).memory_share(setup(0).placement.pools[0], 0) == 1.0


def test_memory_shares_of_pools_with_similar_names():
    small = replace(SHAPE, parameters=500_000_000)
    policies = (PolicySpec(name="solver", model="1.5b"), PolicySpec(name="solver2", model="small"))
    options = ClusterOptions(**{**ROOM, "samplers": 2})
    nodes = (Machine(host="n0", cpus=16, gpus=2, gpu_bytes=141 * GB),)
    shapes = {"1.5b": SHAPE, "small": small}
    placement = find_placement(policies, shapes, Resources(nodes=nodes), options, train=TRAIN)
    both = replace(setup(1), placement=placement, shapes=shapes)
    large, little = ({both.memory_share(pool, engine[0]) for engine in pool.engines} for pool in placement.pools)
    assert len(large) == len(little) == 1 and min(large) > max(little)
