"""The trainings that need a GPU are set up as the engine takes them, which shows without one."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from mappa.session.policies import build_policy_specs
from mappa.sessions import Run
from mappa_core.engine import Machine
from mappa_engine.cluster.placement import Resources, find_placement, read_shape

SMOKE = Path(__file__).parents[4] / "tests_gpu" / "test_smoke.py"
GPU_BYTES = 24_000_000_000
AGENTS = ("problem_solver", "code_executor", "verifier")


def load_smoke() -> ModuleType:
    spec = importlib.util.spec_from_file_location("smoke", SMOKE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


smoke = load_smoke()
SETTINGS = [
    pytest.param(gpus, words, id=f"{gpus} GPU {name}")
    for gpus, several in ((1, smoke.ONE_GPU), (2, smoke.TWO_GPUS))
    for name, words in several.items()
]


@pytest.mark.parametrize(("gpus", "words"), SETTINGS)
def test_gpu_smoke_settings_are_placed(gpus, words):
    config = Run.from_recipe("mathchat/tiny", *smoke.SMALL, *words).composed.config
    specs = build_policy_specs(config, AGENTS)
    machine = Machine(host="box", cpus=16, gpus=gpus, gpu_bytes=GPU_BYTES, memory_bytes=4 * GPU_BYTES)
    placement = find_placement(
        specs,
        {spec.model: read_shape(spec.model) for spec in specs},
        Resources(nodes=(machine,)),
        config.engine.options,
        train=config.train,
    )
    assert placement.device == "gpu" and placement.groups and placement.pools


@pytest.mark.parametrize("words", smoke.LOCAL.values(), ids=smoke.LOCAL)
def test_local_gpu_smoke_settings_are_valid(words):
    assert Run.from_recipe("mathchat/tiny", *smoke.SMALL, *words).composed.config.engine.options.device == "cuda"
