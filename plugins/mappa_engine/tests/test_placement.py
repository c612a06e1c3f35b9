"""Who runs where: what holds of every placement, what fits, and what a refusal says."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mappa_core import ConfigError
from mappa_core.engine import Lora, Machine, PolicySpec, TrainSection
from mappa_engine import memory_estimate
from mappa_engine.cluster.placement import ModelShape, Resources, find_placement, format_placement
from mappa_engine.cluster.placement.format import placement_json
from mappa_engine.cluster.placement.memory import PHASES
from mappa_engine.options import ClusterOptions

GB = 10**9
LAYER = (("q_proj", 6656), ("k_proj", 3584), ("v_proj", 3584), ("o_proj", 6656))
FOUR_B = ModelShape(
    model="4b", parameters=4_020_000_000, layers=36, hidden=2560, intermediate=9728, heads=32, kv_heads=8, head_dim=128,
    vocabulary=151_936, window=40_960, tied=True, largest=151_936 * 2560,
    linears=(*LAYER, ("gate_proj", 12_288), ("up_proj", 12_288), ("down_proj", 12_288)) * 36,
)  # fmt: skip
SMALL = replace(FOUR_B, model="small", parameters=500_000_000, layers=24, hidden=896, largest=136_000_000)
SHAPES = {"4b": FOUR_B, "small": SMALL}
TEAM = tuple(PolicySpec(name=name, model="4b") for name in ("solver", "coder", "verifier"))
LORA = Lora(rank=32, alpha=64)
ADAPTERS = tuple(replace(policy, kind="lora", lora=LORA) for policy in TEAM)
TRAIN = TrainSection(micro_tokens=8192)
LONG = {"max_model_len": 8192, "kv_cache_mb": 8192, "gradient_checkpointing": True}


def cluster(gpus, *, nodes=1, gb=80):
    return Resources(
        nodes=tuple(Machine(host=f"n{n}", cpus=16, gpus=gpus, gpu_bytes=gb * GB if gpus else 0) for n in range(nodes))
    )


def placed(policies=TEAM, resources=None, *, train=TRAIN, **options):
    return find_placement(policies, SHAPES, resources or cluster(8), ClusterOptions(**{**LONG, **options}), train=train)


# --- what holds of every placement ------------------------------------------------------------------------------------

KINDS = st.sampled_from(["full", "lora", "frozen"])


@st.composite
def teams(draw):
    kinds = draw(st.lists(st.tuples(KINDS, st.sampled_from(["4b", "small"])), min_size=1, max_size=5))
    return tuple(
        PolicySpec(name=f"p{n}", model=model, kind=kind, lora=LORA if kind == "lora" else None)
        for n, (kind, model) in enumerate(kinds)
    )


@st.composite
def choices(draw):
    return ClusterOptions(
        placement=draw(st.sampled_from(["colocated", "separate"])),
        learner_ranks=draw(st.sampled_from([None, 1, 2, 4])),
        zero=draw(st.sampled_from(["auto", 1, 2, 3])),
        samplers=draw(st.sampled_from(["auto", 1, 2, 3])),
        tensor_parallel=draw(st.sampled_from([1, 2])),
        offload_optimizer=draw(st.booleans()),
        **{**LONG, "kv_cache_mb": draw(st.sampled_from(["auto", 8192]))},
    )


@given(teams(), choices(), st.integers(0, 8), st.integers(1, 3), st.sampled_from([None, TRAIN]))
def test_every_placement_is_valid(policies, options, gpus, nodes, train):
    resources = cluster(gpus, nodes=nodes)
    try:
        found = find_placement(policies, SHAPES, resources, options, train=train)
    except ConfigError:
        return
    learning = [name for group in found.groups for name in group.policies]
    served = [name for pool in found.pools for name in pool.policies]
    trained = [policy.name for policy in policies if policy.trained and train is not None]
    assert sorted(learning) == sorted(trained)
    assert sorted(served) == sorted(policy.name for policy in policies)
    assert set(found.slots) <= set(resources.slots)
    for group in found.groups:
        assert len(set(group.slots)) == len(group.slots) == (options.learner_ranks or len(group.slots))
    for pool in found.pools:
        assert len(pool.engines) == options.samplers or (options.samplers == "auto" and pool.engines)
        for engine in pool.engines:
            assert len(set(engine)) == options.tensor_parallel
            assert len({found.slots[slot].host for slot in engine}) == 1
    used = {slot for group in found.groups for slot in group.slots} | {
        slot for pool in found.pools for engine in pool.engines for slot in engine
    }
    assert used == set(range(len(found.slots)))
    for number, slot in enumerate(found.slots):
        assert slot.size is None or all(found.bytes_at(number, phase) <= 0.92 * slot.size for phase in PHASES)
    assert found.options.zero in (1, 2, 3) and found.options.kv_cache_mb >= 1
    if gpus and options.placement == "separate":
        sampling = {slot for pool in found.pools for engine in pool.engines for slot in engine}
        assert not sampling & {slot for group in found.groups for slot in group.slots}
    assert found == find_placement(policies, SHAPES, resources, options, train=train)
    json.dumps(placement_json(found))


def test_most_drawn_cases_are_placed():
    """Or the property above would hold of nothing."""
    for placement in ("colocated", "separate"):
        for policies in (TEAM, ADAPTERS, (*TEAM[:1], *ADAPTERS[1:])):
            for nodes in (1, 2):
                assert placed(policies, cluster(8, nodes=nodes), placement=placement).fits


# --- who shares what --------------------------------------------------------------------------------------------------


def test_adapters_of_one_model_share_a_pool():
    found = placed((TEAM[0], *ADAPTERS[1:], PolicySpec(name="judge", model="4b", kind="frozen")))
    (group,) = found.groups
    assert group.policies == ("solver", "coder", "verifier")
    assert [pool.policies for pool in found.pools] == [("solver",), ("coder", "verifier", "judge")]


def test_frozen_policy_with_own_weights_has_a_pool_of_its_own(tmp_path):
    judge = PolicySpec(name="judge", model="4b", kind="frozen", start=tmp_path)
    assert [pool.policies for pool in placed((*ADAPTERS[:1], judge)).pools] == [("solver",), ("judge",)]


def test_separate_learners_and_samplers_leave_no_gpu_idle():
    found = placed(placement="separate", samplers=1)
    (group,) = found.groups
    assert group.slots == (0, 1, 2, 3, 4)
    assert [pool.engines for pool in found.pools] == [((5,),), ((6,),), ((7,),)]
    assert found.notes == ()
    automatic = placed(placement="separate")
    assert automatic.groups[0].slots == (0, 1, 2, 3)
    assert [pool.engines for pool in automatic.pools] == [((4,), (5,), (6,), (7,))] * 3


def test_separate_learners_have_the_given_ranks_and_samplers_the_other_gpus():
    found = placed(resources=cluster(8, gb=141), placement="separate", learner_ranks=2, zero=3)
    (group,) = found.groups
    assert group.policies == ("solver", "coder", "verifier") and group.slots == (0, 1)
    assert [pool.engines for pool in found.pools] == [((2,), (3,), (4,), (5,), (6,), (7,))] * 3


def test_without_room_for_every_engine_on_every_gpu_there_is_one_on_a_gpu():
    team = tuple(replace(policy, model="small") for policy in TEAM)
    found = placed(team, cluster(4, gb=20), zero=3, kv_cache_mb=4096)
    assert [pool.engines for pool in found.pools] == [((0,), (1,)), ((2,),), ((3,),)]


def test_given_engines_go_round_robin_and_gpus_without_one_are_noted():
    found = placed(samplers=2)
    assert [pool.engines for pool in found.pools] == [((0,), (1,)), ((2,), (3,)), ((4,), (5,))]
    assert found.notes == ("2 of 8 GPUs learn and do not sample: more engine.options.samplers would use them",)
    assert found.groups[0].slots == tuple(range(8))


def test_engines_of_full_weights_share_gpus_with_learners():
    """CUDA hands memory from process to process within one GPU alone."""
    found = placed(learner_ranks=4, zero=3)
    assert {slot for pool in found.pools for engine in pool.engines for slot in engine} == set(range(4))
    assert found.notes == ("4 of 8 GPUs do nothing: engine.options.learner_ranks or samplers can use them",)
    for apart in (placed(ADAPTERS, learner_ranks=4), placed(learner_ranks=4, zero=3, transport="store")):
        assert {slot for pool in apart.pools for engine in pool.engines for slot in engine} == set(range(8))


def test_cpu_placement_has_one_learner_and_no_memory_limit():
    found = placed(resources=cluster(0), dtype="auto", kv_cache_mb=65536)
    assert (found.device, found.dtype, found.groups[0].slots) == ("cpu", "float32", (0,))
    assert found.bundles == ({"CPU": 1.0},) * 3
    apart = placed(resources=cluster(0), placement="separate", kv_cache_mb=65536, learner_ranks=2)
    assert {slot for pool in apart.pools for engine in pool.engines for slot in engine} == {2, 3, 4}


def test_cpu_memory_counts_libraries_and_packed_weights():
    """vLLM keeps embedding and head packed beside the weights, and while it loads an embedding that one twice more."""
    policy = replace(TEAM[0], model="small")
    found = placed([policy], resources=cluster(0), kv_cache_mb=65536, gradient_checkpointing=False)
    learner, sampler = found.loads
    embedding = 4 * SMALL.vocabulary * SMALL.hidden
    assert sampler.by_phase["sampling"]["workspace"] == 2 * embedding
    assert sampler.bytes_at("syncing") - sampler.bytes_at("sampling") == 2 * 4 * SMALL.largest
    assert learner.by_phase["learning"]["activations"] > 0 and "activations" not in learner.by_phase["syncing"]
    assert learner.host == {"optimiser": 0, "process": 800_000_000} and sampler.host == {"process": 800_000_000}
    assert found.host_parts["n0"]["process"] == 1_600_000_000 + 500_000_000  # this process


def test_bundles_pin_slots_to_their_nodes():
    assert placed(resources=cluster(8)).bundles[0] == {"GPU": 1.0, "CPU": 1.0}
    assert "node:n1" in placed(resources=cluster(8, nodes=2)).bundles[-1]


def test_without_training_there_are_no_learners():
    found = placed(train=None)
    assert found.groups == () and {load.role for load in found.loads} == {"sampler"}


# --- the arithmetic ---------------------------------------------------------------------------------------------------


def test_training_states_of_one_rank_take_sixteen_bytes_a_parameter():
    for zero in (0, 3):
        parts = memory_estimate.full_training_memory(replace(SMALL, parameters=1000), "bfloat16", zero=zero)
        # Weights in bfloat16, and in float32 gradients, masters and two moments.
        assert parts == {"weights": 2000, "gradients": 4000, "optimiser": 12_000}
    assert (
        memory_estimate.total_bytes(memory_estimate.full_training_memory(replace(SMALL, parameters=1000), "float32"))
        == 16_000
    )


@pytest.mark.parametrize(("zero", "weights", "gradients", "optimiser"), [
    (1, 2000, 6000, 1500), (2, 2000, 500, 1500), (3, 250, 500, 1500),
])  # fmt: skip
def test_zero_stages_divide_states_by_the_ranks(zero, weights, gradients, optimiser):
    parts = memory_estimate.full_training_memory(replace(SMALL, parameters=1000), "bfloat16", zero=zero, ranks=8)
    assert parts == {"weights": weights, "gradients": gradients, "optimiser": optimiser}


@pytest.mark.parametrize(("zero", "policies"), [(2, 1), (3, 3)])
def test_gradients_are_kept_by_all_policies_only_under_zero_3(zero, policies):
    """Under ZeRO-2 they are dropped in the step, before the next policy takes its turn."""
    team = tuple(replace(policy, model="small") for policy in TEAM)
    learner = placed(team, cluster(1, gb=141), zero=zero).loads_on(0)[0]
    assert learner.by_phase["learning"]["gradients"] == policies * 4 * SMALL.parameters


def test_adapter_parameters_are_rank_times_inputs_and_outputs():
    assert FOUR_B.adapter(LORA) == 36 * 32 * (6656 + 3584 + 3584 + 6656 + 3 * 12_288)
    assert FOUR_B.adapter(replace(LORA, targets=("q_proj",))) == 36 * 32 * 6656


def test_kv_cache_bytes_of_one_token():
    assert memory_estimate.kv_cache_bytes(FOUR_B, "bfloat16", 1) == 144 * 1024


def test_three_adapters_take_little_more_memory_than_one():
    one, three = (placed(team, cluster(1)).peak(0)[0] for team in (ADAPTERS[:1], ADAPTERS))
    assert three - one < 4 * GB < 3 * memory_estimate.weight_bytes(FOUR_B, "bfloat16")


def test_colocated_actors_take_turns_on_the_gpu():
    found = placed(zero=3)
    learner, sampler, *_ = found.loads_on(0)
    # A sleeping engine keeps its context, its graphs (36 layers) and the counters of 256 requests.
    assert sampler.bytes_at("learning") == 750_000_000 + 36 * 40_000_000 + 256 * 151_936 * 4
    assert learner.bytes_at("sampling") < GB < learner.bytes_at("learning")
    assert "kv cache" not in sampler.by_phase["syncing"] and "optimiser" not in learner.by_phase["syncing"]
    assert found.host_bytes["n0"] > 8 * 3 * memory_estimate.ADAM_MOMENT_BYTES * FOUR_B.parameters // 8


def test_engines_of_adapters_do_not_sleep():
    """Nothing of theirs sleeps: the base never changes, and an adapter is a file."""
    found = placed(ADAPTERS, cluster(1))
    learner, sampler = found.loads_on(0)
    assert sampler.bytes_at("learning") == sampler.bytes_at("syncing") == sampler.bytes_at("sampling")
    weights, cache = memory_estimate.weight_bytes(FOUR_B, "bfloat16"), found.options.kv_cache_mb << 20
    assert sampler.bytes_at("learning") > weights + cache
    assert found.bytes_at(0, "learning") > 2 * weights + cache
    assert learner.bytes_at("syncing") > weights > learner.bytes_at("sampling")


def test_engine_of_a_frozen_policy_does_not_sleep():
    judge = PolicySpec(name="judge", model="small", kind="frozen")
    found = placed((*TEAM[:1], judge))
    _, solver, other = found.loads_on(0)
    assert other.actor.startswith("sampler judge") and "weights" not in solver.by_phase["learning"]
    assert other.bytes_at("learning") > memory_estimate.weight_bytes(SMALL, "bfloat16")


def test_sequences_are_packed_on_gpus_and_rows_of_their_own_on_cpus():
    room = {"max_model_len": 256, "kv_cache_mb": 128, "gradient_checkpointing": False}
    team = tuple(replace(policy, model="small") for policy in TEAM)
    rows, packed = (placed(team, cluster(0), **room, **own) for own in ({}, {"packed_tokens": 4096}))
    assert (rows.options.packed_tokens, packed.options.packed_tokens) == (None, 4096)
    assert placed().options.packed_tokens == 4096
    # Rows need no mask.
    assert rows.loads[0].by_phase["learning"]["activations"] < packed.loads[0].by_phase["learning"]["activations"]


def test_host_memory_holds_every_base_and_a_copy_while_a_rank_loads():
    machine = Machine(host="n0", cpus=16, gpus=8, gpu_bytes=80 * GB)
    found = placed(resources=Resources(nodes=(machine,)), placement="separate", learner_ranks=4)
    assert found.host_parts["n0"]["references"] == 4 * 2 * FOUR_B.parameters
    assert found.host_parts["n0"]["copies at the start"] == 4 * 2 * FOUR_B.parameters


def test_a_policy_that_starts_from_another_run_has_a_reference_of_its_own(tmp_path):
    team = tuple(replace(policy, model="small") for policy in TEAM)
    started = tuple(replace(policy, reference=tmp_path) for policy in team)

    def references(*policies):
        found = placed(policies, placement="separate", learner_ranks=1)
        return found.host_parts["n0"]["references"] / (2 * SMALL.parameters)

    assert references(*team) == references(started[0]) == 1
    assert references(started[0], team[1]) == references(*started[:2]) == 2
    plain, adapted = (
        placed([replace(ADAPTERS[0], reference=at)], cluster(1)).loads_on(0)[0].by_phase["learning"]
        for at in (None, tmp_path)
    )
    assert adapted["reference"] - plain.get("reference", 0) == 4 * FOUR_B.adapter(LORA)


def test_host_memory_of_a_gpu_node_is_checked():
    machine = Machine(host="n0", cpus=16, gpus=8, gpu_bytes=80 * GB, memory_bytes=512 * GB)
    roomy = placed(resources=Resources(nodes=(machine,)))
    # What waits there while agents sample, on each of eight ranks: weights in bfloat16, an eighth of 12 bytes a number.
    waiting = 8 * (3 * 2 * FOUR_B.parameters) + 3 * 12 * FOUR_B.parameters
    assert roomy.host_parts["n0"]["states while agents sample"] == pytest.approx(waiting, rel=1e-6)
    assert roomy.host_parts["n0"]["references"] == 8 * 2 * FOUR_B.parameters
    assert roomy.host_parts["n0"]["copies at the start"] == 0  # more waits there later
    assert roomy.options.zero == 2
    tight = placed(resources=Resources(nodes=(replace(machine, memory_bytes=300 * GB),)))
    assert tight.options.zero == 3 and tight.host_bytes["n0"] <= 0.92 * 300 * GB
    with pytest.raises(
        ConfigError, match=r"n0 itself has 100\.0 GB of memory, of which 92\.0 GB can be used, and it would"
    ):
        placed(resources=Resources(nodes=(replace(machine, memory_bytes=100 * GB),)))


def test_head_rows_are_those_of_the_learner():
    from mappa_engine.learning import output_head

    assert output_head.head_rows is memory_estimate.head_rows
    assert [memory_estimate.head_rows(size) for size in (259, 151_936)] == [memory_estimate.MAX_LOGITS // 259, 1024]


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_refusal_has_the_arithmetic_and_remedies():
    with pytest.raises(ConfigError) as refused:
        placed(resources=cluster(2), zero=2)
    text = str(refused.value)
    assert text.startswith(
        "the policies do not fit: n0 gpu0 has 80.0 GB, of which 73.6 GB can be used, and while learning it would hold "
    )
    assert "optimiser 72.4 GB" in text  # three times 12 bytes of 4.02e9 parameters over two ranks
    assert "engine.options.zero=3: " in text and "engine.options.offload_optimizer=true: " in text
    assert "which fits" in text and "which is still too much" in text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"placement": "apart"}, "engine.options.placement is 'apart'; it can be colocated, separate"),
        ({"zero": 4}, "engine.options.zero is 4"),
        ({"zero": 1}, "engine.options.zero=1 in bfloat16 cannot leave its GPUs to samplers. Use engine.options.zero=2"),
        ({"zero": 0, "placement": "separate"}, "engine.options.zero=0 does not go with bfloat16"),
        ({"zero": 0, "dtype": "float32", "placement": "separate", "offload_optimizer": True},
         "engine.options.offload_optimizer needs engine.options.zero=1, 2 or 3"),
        ({"dtype": "float16"}, "engine.options.dtype is 'float16'"),
        ({"learner_ranks": 0}, "engine.options.learner_ranks is 0; it is at least 1"),
        ({"max_batch": 0}, "engine.options.max_batch is 0; it is at least 1"),
        ({"sync_s": 0.0}, "engine.options.sync_s is 0; it is above 0"),
        ({"probe_limit": -1.0}, "engine.options.probe_limit is -1; it is above 0"),
        ({"learner_ranks": 9}, "engine.options.learner_ranks=9, where"),
        ({"tensor_parallel": 16}, "the 8 GPUs that there are do not suffice for "),
        ({"tensor_parallel": 3}, "tensor_parallel=3 does not divide the 32 attention heads of 4b"),
        ({"max_model_len": 50_000}, "max_model_len=50000 is longer than the window of 4b, 40960 tokens"),
        ({"placement": "separate", "learner_ranks": 8}, "or let them take turns by engine.options.placement=colocated"),
        ({"kv_cache_mb": 512}, "kv_cache_mb=512 holds keys and values of 3,640 tokens of 4b (147,456 bytes each), and "
                               "one request may have 8,192"),
    ],
)  # fmt: skip
def test_invalid_options_are_refused(options, said):
    with pytest.raises(ConfigError) as refused:
        placed(**options)
    assert said in str(refused.value)


def test_remedies_are_supported_by_deepspeed():
    """Learners at that stage could not take turns with samplers; at another they can, which is said."""
    with pytest.raises(ConfigError) as refused:
        placed(resources=cluster(2), zero=1, placement="separate")
    text = str(refused.value)
    assert "placement=colocated:" not in text and "engine.options.zero=3: " in text
    assert "all of these together: " in text


def test_kv_cache_of_the_size_in_the_refusal_is_enough():
    with pytest.raises(ConfigError, match=r"Set engine\.options\.kv_cache_mb to 1152 or more"):
        placed(kv_cache_mb=1151)
    assert placed(kv_cache_mb=1152).fits


def test_cluster_without_devices_is_refused():
    with pytest.raises(ConfigError, match="neither GPUs nor CPUs"):
        find_placement(TEAM, SHAPES, Resources(nodes=(Machine(host="a", cpus=0),)), ClusterOptions(**LONG), train=TRAIN)
    with pytest.raises(ConfigError, match="memory of the cluster's GPUs is not known"):
        find_placement(
            TEAM, SHAPES, Resources(nodes=(Machine(host="a", cpus=1, gpus=1),)), ClusterOptions(**LONG), train=TRAIN
        )


# --- what people read -------------------------------------------------------------------------------------------------


def test_format_has_places_and_memory():
    lines = format_placement(placed(zero=3, samplers=2))
    assert lines[1].split("  ")[0] == "learners, 8 ranks" and lines[1].endswith("gpu0-7")
    assert any(line.startswith("gpu0-5 of 80.0 GB") for line in lines)
    assert any(line.startswith("samplers sampling: weights 8.0 GB, kv cache 8.6 GB") for line in lines)
    assert lines[-1].startswith("2 of 8 GPUs learn")


def test_reasons_name_the_decided_options():
    found = placed(gradient_checkpointing="auto", kv_cache_mb="auto")
    requests = found.options.kv_cache_mb / (8192 * 144 / 1024)  # 144 KB a token
    assert found.reasons == (
        "decided: zero 2; gradient_checkpointing true; at most 3 of 3 samplers on a GPU; "
        f"kv_cache_mb {found.options.kv_cache_mb:,}, {requests:.1f} requests of 8,192 tokens",
    )


def test_options_that_are_set_need_no_reasons():
    assert placed(zero=3, samplers=1).reasons == ()


def test_placement_imports_no_heavy_library():
    heavy = ("ray", "torch", "deepspeed", "vllm", "transformers")
    program = f"import sys, mappa_engine.cluster.placement\nsys.exit(str(set({heavy!r}) & set(sys.modules) or '') or 0)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).returncode == 0
