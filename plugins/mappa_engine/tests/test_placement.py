"""Who runs where: what holds of every placement, what fits, and what a refusal says."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mappa_core.engine import Lora, Machine, PolicySpec
from mappa_core.errors import ConfigError
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
ADAPTERS = tuple(replace(one, kind="lora", lora=LORA) for one in TEAM)
LONG = {"max_model_len": 8192, "kv_cache_mb": 8192, "gradient_checkpointing": True}


def cluster(gpus, *, nodes=1, gb=80):
    return Resources(
        nodes=tuple(Machine(host=f"n{n}", cpus=16, gpus=gpus, gpu_bytes=gb * GB if gpus else 0) for n in range(nodes))
    )


def placed(policies=TEAM, resources=None, *, micro_tokens=8192, **options):
    return find_placement(
        policies, SHAPES, resources or cluster(8), ClusterOptions(**{**LONG, **options}), micro_tokens=micro_tokens
    )


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


@given(teams(), choices(), st.integers(0, 8), st.integers(1, 3), st.sampled_from([None, 4096]))
def test_every_placement_keeps_its_promises(policies, options, gpus, nodes, micro_tokens):
    resources = cluster(gpus, nodes=nodes)
    try:
        found = find_placement(policies, SHAPES, resources, options, micro_tokens=micro_tokens)
    except ConfigError:
        return
    learning = [name for group in found.groups for name in group.policies]
    served = [name for pool in found.pools for name in pool.policies]
    trained = [one.name for one in policies if one.trained and micro_tokens is not None]
    assert sorted(learning) == sorted(trained)
    assert sorted(served) == sorted(one.name for one in policies)
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
    assert found == find_placement(policies, SHAPES, resources, options, micro_tokens=micro_tokens)
    json.dumps(placement_json(found))


def test_most_of_what_is_drawn_is_placed():
    """Or the property above would hold of nothing."""
    for placement in ("colocated", "separate"):
        for policies in (TEAM, ADAPTERS, (*TEAM[:1], *ADAPTERS[1:])):
            for nodes in (1, 2):
                assert placed(policies, cluster(8, nodes=nodes), placement=placement).fits


# --- who shares what --------------------------------------------------------------------------------------------------


def test_adapters_of_one_model_share_a_base_and_an_engine():
    found = placed((TEAM[0], *ADAPTERS[1:], PolicySpec(name="judge", model="4b", kind="frozen")))
    (group,) = found.groups
    assert group.policies == ("solver", "coder", "verifier")
    assert [pool.policies for pool in found.pools] == [("solver",), ("coder", "verifier", "judge")]


def test_a_frozen_policy_of_other_weights_has_an_engine_of_its_own(tmp_path):
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


def test_with_ranks_given_each_policy_has_as_many_gpus_of_its_own_where_they_suffice():
    found = placed(placement="separate", learner_ranks=2)
    assert {group.name: group.slots for group in found.groups} == {
        "solver": (0, 1),
        "coder": (2, 3),
        "verifier": (4, 5),
    }
    assert placed(placement="separate", learner_ranks=4).groups[0].policies == ("solver", "coder", "verifier")


def test_engines_are_dealt_out_and_gpus_that_do_not_sample_are_named():
    found = placed(samplers=2)
    assert [pool.engines for pool in found.pools] == [((0,), (1,)), ((2,), (3,)), ((4,), (5,))]
    assert found.notes == ("2 of 8 GPUs learn and do not sample: more engine.options.samplers would use them",)
    assert found.groups[0].slots == tuple(range(8))


def test_engines_of_full_weights_are_beside_learners_where_memory_is_shared():
    """CUDA hands memory from process to process within one GPU alone."""
    found = placed(learner_ranks=4, zero=3)
    assert {slot for pool in found.pools for engine in pool.engines for slot in engine} == set(range(4))
    assert found.notes == ("4 of 8 GPUs do nothing: engine.options.learner_ranks or samplers can use them",)
    for apart in (placed(ADAPTERS, learner_ranks=4), placed(learner_ranks=4, zero=3, transport="store")):
        assert {slot for pool in apart.pools for engine in pool.engines for slot in engine} == set(range(8))


def test_without_gpus_learners_have_one_cpu_and_nothing_is_held_against_its_memory():
    found = placed(resources=cluster(0), dtype="auto", kv_cache_mb=65536)
    assert (found.device, found.dtype, found.groups[0].slots) == ("cpu", "float32", (0,))
    assert found.bundles == ({"CPU": 1.0},) * 3
    apart = placed(resources=cluster(0), placement="separate", kv_cache_mb=65536, learner_ranks=2)
    assert {slot for pool in apart.pools for engine in pool.engines for slot in engine} == {2, 3, 4}


def test_a_plan_on_cpus_counts_libraries_and_what_vllm_packs():
    """vLLM keeps embedding and head packed beside the weights, and while it loads an embedding that one twice more."""
    found = placed(TEAM[:1], resources=cluster(0), kv_cache_mb=65536)
    learner, sampler = found.loads
    embedding = 4 * SHAPES["4b"].vocabulary * SHAPES["4b"].hidden
    assert sampler.by_phase["sampling"]["workspace"] == 2 * embedding
    assert sampler.bytes_at("syncing") - sampler.bytes_at("sampling") == 2 * 4 * SHAPES["4b"].largest
    assert learner.by_phase["learning"]["activations"] > 0 and "activations" not in learner.by_phase["syncing"]
    assert learner.host == {"optimiser": 0, "process": 800_000_000} and sampler.host == {"process": 800_000_000}
    assert found.host_parts["n0"]["process"] == 1_600_000_000


def test_bundles_hold_slots_to_their_nodes():
    assert placed(resources=cluster(8)).bundles[0] == {"GPU": 1.0, "CPU": 1.0}
    assert "node:n1" in placed(resources=cluster(8, nodes=2)).bundles[-1]


def test_nothing_is_trained_where_there_is_no_training():
    found = placed(micro_tokens=None)
    assert found.groups == () and {load.role for load in found.loads} == {"sampler"}


# --- the arithmetic ---------------------------------------------------------------------------------------------------


def test_states_of_one_rank_are_sixteen_bytes_a_parameter():
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
def test_stages_share_states_over_the_ranks(zero, weights, gradients, optimiser):
    parts = memory_estimate.full_training_memory(replace(SMALL, parameters=1000), "bfloat16", zero=zero, ranks=8)
    assert parts == {"weights": weights, "gradients": gradients, "optimiser": optimiser}


def test_an_adapter_has_rank_times_inputs_and_outputs_of_every_layer_it_is_on():
    assert FOUR_B.adapter(LORA) == 36 * 32 * (6656 + 3584 + 3584 + 6656 + 3 * 12_288)
    assert FOUR_B.adapter(replace(LORA, targets=("q_proj",))) == 36 * 32 * 6656


def test_keys_and_values_of_a_token():
    assert memory_estimate.kv_cache_bytes(FOUR_B, "bfloat16", 1) == 144 * 1024


def test_three_adapters_take_little_more_than_one():
    one, three = (placed(team, cluster(1)).peak(0)[0] for team in (ADAPTERS[:1], ADAPTERS))
    assert three - one < 4 * GB < 3 * memory_estimate.weight_bytes(FOUR_B, "bfloat16")


def test_colocated_actors_leave_the_gpu_to_each_other():
    found = placed(zero=3)
    learner, sampler, *_ = found.loads_on(0)
    assert sampler.bytes_at("learning") < GB < sampler.bytes_at("sampling")
    assert learner.bytes_at("sampling") < GB < learner.bytes_at("learning")
    assert "kv cache" not in sampler.by_phase["syncing"] and "optimiser" not in learner.by_phase["syncing"]
    assert found.host_bytes["n0"] > 8 * 3 * memory_estimate.ADAM_MOMENT_BYTES * FOUR_B.parameters // 8


def test_engines_of_adapters_stay_where_they_are_while_learners_compute():
    """Nothing of theirs sleeps: the base never changes, and an adapter is a file."""
    found = placed(ADAPTERS, cluster(1))
    learner, sampler = found.loads_on(0)
    assert sampler.bytes_at("learning") == sampler.bytes_at("syncing") == sampler.bytes_at("sampling")
    weights, cache = memory_estimate.weight_bytes(FOUR_B, "bfloat16"), found.options.kv_cache_mb << 20
    assert sampler.bytes_at("learning") > weights + cache
    assert found.bytes_at(0, "learning") > 2 * weights + cache
    assert learner.bytes_at("syncing") > weights > learner.bytes_at("sampling")


def test_a_frozen_judge_beside_learners_is_not_counted_as_asleep():
    judge = PolicySpec(name="judge", model="small", kind="frozen")
    found = placed((*TEAM[:1], judge))
    _, solver, other = found.loads_on(0)
    assert other.actor.startswith("sampler judge") and solver.bytes_at("learning") < GB
    assert other.bytes_at("learning") > memory_estimate.weight_bytes(SMALL, "bfloat16")


def test_rows_of_packed_sequences_are_short_on_cpus_unless_they_are_set():
    room = {"max_model_len": 256, "kv_cache_mb": 128, "gradient_checkpointing": False}
    short, long = (placed(resources=cluster(0), **room, **own) for own in ({}, {"packed_tokens": 4096}))
    assert (short.options.packed_tokens, long.options.packed_tokens) == (512, 4096)
    assert placed().options.packed_tokens == 4096
    assert short.loads[0].by_phase["learning"]["activations"] < long.loads[0].by_phase["learning"]["activations"]


def test_a_node_needs_memory_for_what_its_gpus_leave_to_it():
    machine = Machine(host="n0", cpus=16, gpus=8, gpu_bytes=80 * GB, memory_bytes=512 * GB)
    roomy = placed(resources=Resources(nodes=(machine,)))
    # What waits there while agents sample, on each of eight ranks: weights in bfloat16, an eighth of 12 bytes a number.
    waiting = 8 * (3 * 2 * FOUR_B.parameters) + 3 * 12 * FOUR_B.parameters
    assert roomy.host_parts["n0"]["states while agents sample"] == pytest.approx(waiting, rel=1e-6)
    assert roomy.host_parts["n0"]["references"] == 8 * 2 * FOUR_B.parameters
    assert roomy.options.zero == 2
    tight = placed(resources=Resources(nodes=(replace(machine, memory_bytes=300 * GB),)))
    assert tight.options.zero == 3 and tight.host_bytes["n0"] <= 0.92 * 300 * GB
    assert any(line.startswith("zero: 3; 2 takes ") and "of n0's 300.0 GB" in line for line in tight.reasons)
    with pytest.raises(
        ConfigError, match=r"n0 itself has 100\.0 GB of memory, of which 92\.0 GB can be used, and it would"
    ):
        placed(resources=Resources(nodes=(replace(machine, memory_bytes=100 * GB),)))


def test_logits_of_a_chunk_are_those_of_the_learner():
    from mappa_engine.learning import output_head

    assert output_head.head_rows is memory_estimate.head_rows
    assert [memory_estimate.head_rows(size) for size in (259, 151_936)] == [memory_estimate.MAX_LOGITS // 259, 1024]


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_what_cannot_fit_is_refused_with_the_arithmetic_and_what_would_help():
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
def test_options_that_make_no_sense_are_refused(options, said):
    with pytest.raises(ConfigError) as refused:
        placed(**options)
    assert said in str(refused.value)


def test_a_remedy_that_deepspeed_does_not_support_is_not_offered():
    """Learners at that stage could not take turns with samplers; at another they can, which is said."""
    with pytest.raises(ConfigError) as refused:
        placed(resources=cluster(2), zero=1, placement="separate")
    text = str(refused.value)
    assert "placement=colocated:" not in text and "engine.options.zero=3: " in text
    assert "all of these together: " in text


def test_as_much_for_keys_and_values_as_a_refusal_asks_for_is_enough():
    with pytest.raises(ConfigError, match=r"Set engine\.options\.kv_cache_mb to 1152 or more"):
        placed(kv_cache_mb=1151)
    assert placed(kv_cache_mb=1152).fits


def test_a_cluster_without_anything_is_refused():
    with pytest.raises(ConfigError, match="neither GPUs nor CPUs"):
        find_placement(
            TEAM, SHAPES, Resources(nodes=(Machine(host="a", cpus=0),)), ClusterOptions(**LONG), micro_tokens=1
        )
    with pytest.raises(ConfigError, match="memory of the cluster's GPUs is not known"):
        find_placement(
            TEAM, SHAPES, Resources(nodes=(Machine(host="a", cpus=1, gpus=1),)), ClusterOptions(**LONG), micro_tokens=1
        )


# --- what people read -------------------------------------------------------------------------------------------------


def test_the_table_says_who_runs_where_and_what_it_takes():
    lines = format_placement(placed(zero=3, samplers=2))
    assert lines[1].split("  ")[0] == "learners, 8 ranks" and lines[1].endswith("gpu0-7")
    assert any(line.startswith("gpu0-5 of 80.0 GB") for line in lines)
    assert any(line.startswith("samplers sampling: weights 8.0 GB, kv cache 8.6 GB") for line in lines)
    assert lines[-1].startswith("2 of 8 GPUs learn")


def test_the_plan_says_why_with_the_arithmetic():
    found = placed(gradient_checkpointing="auto", kv_cache_mb="auto")
    reasons = "\n".join(found.reasons)
    assert "8% of every GPU are left free" in reasons
    assert re.search(
        r"gradient_checkpointing: true; without it takes [\d.]+ GB while learning, of the 73.6 GB", reasons
    )
    assert "samplers: an engine of every policy on every GPU that samples" in reasons
    window = 8192 * 144 // 1024  # 144 KB a token
    assert (
        f"kv_cache_mb: {found.options.kv_cache_mb:,} = {found.options.kv_cache_mb / window:.1f} requests of 8,192"
        in reasons
    )
    assert placed(**{"zero": 3, "samplers": 1}).reasons[1:] == ()


def test_placement_imports_nothing_heavy():
    heavy = ("ray", "torch", "deepspeed", "vllm", "transformers")
    program = f"import sys, mappa_engine.cluster.placement\nsys.exit(str(set({heavy!r}) & set(sys.modules) or '') or 0)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).returncode == 0
