"""Placement of published models on 1, 2, 4 and 8 GPUs of common sizes: no GPU is idle, none holds more than it has, and
every refusal names what would fit, which then does."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from mappa_core import ConfigError
from mappa_core.engine import Lora, Machine, PolicySpec, TrainSection
from mappa_engine.cluster.placement import ModelShape, Placement, Resources, find_placement
from mappa_engine.cluster.placement.memory import PHASES
from mappa_engine.cluster.placement.resources import usable_bytes
from mappa_engine.local.memory import estimate_local_memory
from mappa_engine.options import ClusterOptions, LocalOptions

ROOT = Path(__file__).parents[3]
GB = 10**9
LORA = Lora(rank=16, alpha=32.0)
ROLES = ("solver", "coder", "verifier")
TRAIN = TrainSection(micro_tokens=16_384)


def shape(model, parameters, layers, hidden, inner, heads, kv_heads, head_dim, window, *, tied) -> ModelShape:
    """Sizes as the model's config.json has them; all have a vocabulary of 151,936 tokens."""
    query, key = heads * head_dim, kv_heads * head_dim
    features = {
        "q_proj": hidden + query, "k_proj": hidden + key, "v_proj": hidden + key, "o_proj": query + hidden,
        "gate_proj": hidden + inner, "up_proj": hidden + inner, "down_proj": inner + hidden,
    }  # fmt: skip
    return ModelShape(
        model=model, parameters=parameters, layers=layers, hidden=hidden, intermediate=inner, heads=heads,
        kv_heads=kv_heads, head_dim=head_dim, vocabulary=151_936, window=window, tied=tied, largest=151_936 * hidden,
        linears=tuple(features.items()) * layers,
    )  # fmt: skip


MODELS = {
    each.model: each
    for each in (
        shape("Qwen2.5-0.5B-Instruct", 494_032_768, 24, 896, 4864, 14, 2, 64, 32_768, tied=True),
        shape("Qwen3-0.6B", 596_049_920, 28, 1024, 3072, 16, 8, 128, 40_960, tied=True),
        shape("Qwen2.5-1.5B-Instruct", 1_543_714_304, 28, 1536, 8960, 12, 2, 128, 32_768, tied=True),
        shape("Qwen3-4B-Thinking-2507", 4_022_468_096, 36, 2560, 9728, 32, 8, 128, 262_144, tied=True),
        shape("Qwen3-8B", 8_190_735_360, 36, 4096, 12_288, 32, 8, 128, 40_960, tied=False),
    )
}
GPUS, SIZES, KINDS = (1, 2, 4, 8), (24, 40, 80, 141), ("full", "lora")


def team(model: str, kind: str) -> tuple[PolicySpec, ...]:
    return tuple(PolicySpec(name=role, model=model, kind=kind, lora=LORA if kind == "lora" else None) for role in ROLES)


def place(model: str, kind: str, gpus: int, gigabytes: int, **options) -> Placement:
    resources = Resources(nodes=(Machine(host="n", cpus=16, gpus=gpus, gpu_bytes=gigabytes * GB),))
    chosen = ClusterOptions(**{"max_model_len": 8192, **options})
    return find_placement(team(model, kind), MODELS, resources, chosen, train=TRAIN)


@cache
def outcome(model: str, kind: str, gpus: int, gigabytes: int) -> Placement | str:
    """The placement under the default options, or the refusal."""
    try:
        return place(model, kind, gpus, gigabytes)
    except ConfigError as refused:
        return str(refused)


GRID = [pytest.param(*case, id="-".join(map(str, case))) for case in product(MODELS, KINDS, GPUS, SIZES)]


@pytest.mark.parametrize(("model", "kind", "gpus", "gigabytes"), GRID)
def test_placement_uses_every_gpu_or_its_refusal_is_true(model, kind, gpus, gigabytes):
    found = outcome(model, kind, gpus, gigabytes)
    if isinstance(found, str):
        check_refusal(found, model, kind, gpus, gigabytes)
    else:
        check_placement(found, model, gpus, gigabytes)


def check_placement(found: Placement, model: str, gpus: int, gigabytes: int) -> None:
    """No GPU is idle, none holds more than it has, and an engine has room for a request of full length."""
    sampling = [slot for pool in found.pools for engine in pool.engines for slot in engine]
    assert set(sampling) == {slot for group in found.groups for slot in group.slots} == set(range(gpus))
    engines = [sampling.count(slot) for slot in range(gpus)]
    assert max(engines) - min(engines) <= 1, "some GPU has many more engines than another"
    for number, phase in product(range(gpus), PHASES):
        assert found.bytes_at(number, phase) <= 0.92 * gigabytes * GB
    per_token = 2 * MODELS[model].kv_per_token
    assert found.options.kv_cache_mb << 20 >= 8192 * per_token, "not one request of full length"
    assert found.dtype == "bfloat16" and found.notes == ()


def check_refusal(refused: str, model: str, kind: str, gpus: int, gigabytes: int) -> None:
    """What it says would fit does, and what it says would not does not."""
    machines = [tuple(map(int, machine)) for machine in re.findall(r"(\d+) GPUs? of (\d+) GB", refused)]
    assert machines, refused
    for count, size in machines:
        assert (count, size) > (gpus, gigabytes) or size > gigabytes
        assert place(model, kind, count, size).fits
    advice = re.findall(r"^  engine\.options\.(\w+)=(\w+): .*?(fits|too much)$", refused, re.MULTILINE)
    assert {"offload_optimizer", "max_model_len"} >= {name for name, _, _ in advice}
    for name, value, fits in advice:
        changed = {name: True if value == "true" else int(value)}
        if fits == "fits":
            assert place(model, kind, gpus, gigabytes, **changed).fits
        else:
            with pytest.raises(ConfigError):
                place(model, kind, gpus, gigabytes, **changed)
    if "kind=lora, which shares a model" in refused:
        assert ("which shares a model: " in refused) and kind == "full"
        assert isinstance(outcome(model, "lora", gpus, gigabytes), Placement) == bool(
            re.search(r"which shares a model: .* which fits", refused)
        )


def test_grid_has_placements_and_refusals():
    """Or the tests above would hold of nothing."""
    refused = sum(isinstance(outcome(*case.values), str) for case in GRID)
    assert 30 < refused < 90, refused


@given(st.sampled_from(list(MODELS)), st.sampled_from(KINDS), st.sampled_from(GPUS), st.sampled_from(SIZES))
@settings(max_examples=20, deadline=None)
def test_automatic_options_are_the_first_of_all_settings_that_fit(model, kind, gpus, gigabytes):
    """Against every combination set by hand: what is refused fits with none, and what is found is the first."""
    window = -(-8192 * 2 * MODELS[model].kv_per_token >> 20)
    pools = 3 if kind == "full" else 1
    fitting = []
    for engines, zero, again in product((pools * gpus, max(pools, gpus)), (2, 3), (False, True)):
        try:
            place(
                model, kind, gpus, gigabytes, zero=zero, gradient_checkpointing=again, kv_cache_mb=window + 1,
                samplers=max(1, engines // pools),
            )  # fmt: skip
        except ConfigError:
            continue
        fitting.append((engines // gpus, zero, again))
    found = outcome(model, kind, gpus, gigabytes)
    if isinstance(found, str):
        assert not fitting
        return
    engines, zero, again = fitting[0]
    assert found.max_engines_per_slot >= engines
    # It makes room for some requests before it saves time.
    assert (found.options.zero, found.options.gradient_checkpointing) >= (zero, again)


@pytest.mark.parametrize("gpus", GPUS[1:])
def test_separate_placement_uses_every_gpu(gpus):
    found = place("Qwen2.5-0.5B-Instruct", "full", gpus, 80, placement="separate")
    learning = {slot for group in found.groups for slot in group.slots}
    sampling = {slot for pool in found.pools for engine in pool.engines for slot in engine}
    assert learning | sampling == set(range(gpus)) and not learning & sampling
    assert len(learning) == len(sampling) == gpus // 2


def test_adapters_fit_where_full_weights_fit():
    for model, gpus, gigabytes in product(MODELS, GPUS, SIZES):
        if isinstance(outcome(model, "full", gpus, gigabytes), Placement):
            assert isinstance(outcome(model, "lora", gpus, gigabytes), Placement), (model, gpus, gigabytes)


def test_what_fits_also_fits_on_larger_gpus():
    for model, kind, gpus in product(MODELS, KINDS, GPUS):
        placed = [isinstance(outcome(model, kind, gpus, size), Placement) for size in SIZES]
        assert placed == sorted(placed), (model, kind, gpus)


def test_what_fits_also_fits_on_more_gpus():
    for model, kind, size in product(MODELS, KINDS, SIZES):
        placed = [isinstance(outcome(model, kind, gpus, size), Placement) for gpus in GPUS]
        assert placed == sorted(placed), (model, kind, size)


def test_kubernetes_worker_has_the_planned_host_memory():
    (job,) = yaml.safe_load_all(Path(ROOT, "deploy/kubernetes/rayjob.yaml").read_text())
    assert "--recipe paper" in job["spec"]["entrypoint"]
    recipe = yaml.safe_load(Path(ROOT, "plugins/mappa_mathchat/mappa_mathchat/recipes/paper.yaml").read_text())
    (group,) = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    pod = group["template"]["spec"]
    limits = pod["containers"][0]["resources"]["limits"]
    found = place("Qwen3-4B-Thinking-2507", "full", int(limits["nvidia.com/gpu"]), 80, **recipe["engine"]["options"])
    shared = next(volume["emptyDir"]["sizeLimit"] for volume in pod["volumes"] if "emptyDir" in volume)
    assert found.host_bytes["n"] + gibibytes(shared) <= gibibytes(limits["memory"])
    assert found.host_bytes["n"] <= usable_bytes(gibibytes(limits["memory"]))


def gibibytes(size: str) -> int:
    return int(size.removesuffix("Gi")) << 30


def test_two_models_share_one_gpu():
    small, large = "Qwen2.5-0.5B-Instruct", "Qwen2.5-1.5B-Instruct"
    policies = (*team(small, "lora")[:2], replace(team(large, "lora")[2], name="judge"))
    resources = Resources(nodes=(Machine(host="n", cpus=16, gpus=1, gpu_bytes=40 * GB),))
    found = find_placement(policies, MODELS, resources, ClusterOptions(max_model_len=8192), train=TRAIN)
    assert len(found.pools) == 2 and found.max_engines_per_slot == 2
    assert found.options.kv_cache_mb << 20 >= 8 * 8192 * 2 * MODELS[large].kv_per_token


@pytest.mark.parametrize(
    ("model", "kind", "dtype", "says"),
    [
        (
            "Qwen2.5-0.5B-Instruct",
            "full",
            "float32",
            "Qwen2.5-0.5B-Instruct hold {states} GB, and take at most {total} GB with",
        ),
        (
            "Qwen2.5-1.5B-Instruct",
            "full",
            "float32",
            "Qwen2.5-1.5B-Instruct hold {states} GB, and take at most {total} GB.",
        ),
        (
            "Qwen2.5-1.5B-Instruct",
            "lora",
            "bfloat16",
            "the three of 1.5 B fit into 24 GB, with at most {total} GB",
        ),
    ],
)
def test_engines_page_has_the_planned_memory_of_the_local_engine(model, kind, dtype, says):
    options = LocalOptions(dtype=dtype, max_model_len=4096, gradient_checkpointing=True)
    found = estimate_local_memory(
        team(model, kind), {model: MODELS[model]}, options, train=TrainSection(micro_tokens=4096), rows=32, gpu=True
    )
    parts = [part for own in found.values() for part in own.items()]
    states = sum(size for name, size in parts if name in ("weights", "gradients", "optimiser", "reference"))
    total = sum(size for _, size in parts)
    text = says.format(states=f"{states / GB:.0f}", total=f"{total / GB:.0f}")
    assert text in " ".join((ROOT / "docs" / "engines.md").read_text().split())
