"""What the plugin offers, and that its recipes say what was published."""

from __future__ import annotations

import subprocess
import sys

import pytest

from mappa.sessions import ComposedConfig, compose
from mappa.testing import load_plugins
from mappa_core import PluginError, Registry
from mappa_dsbench.commands import command


@pytest.fixture(scope="module")
def registry() -> Registry:
    """Without the coaches that may be installed beside it: what a recipe says of one that is not stays a mapping."""
    return load_plugins(only=("look", "dsbench", "engine", "sandbox"))


def recipe(registry: Registry, name: str) -> ComposedConfig:
    return compose(registry, "dsbench", name)


def test_the_plugin_loads_whole(registry: Registry) -> None:
    plugin = registry.plugin("dsbench")
    assert set(plugin.recipes) == {"tiny", "small", "small-full", "paper"}
    assert {*command.commands} == {"prepare", "score", "unlearned", "warm-start"}
    assert registry.offer("tasks", "dsbench-embedded") and registry.offer("tasks", "dsbench")


def test_offers_are_built_from_their_options(registry: Registry) -> None:
    for kind, name in (("workflows", "dsbench"), ("tasks", "dsbench-embedded"), ("coaches", "dsbench-rules")):
        assert registry.build(kind, name) is not None


def test_loading_the_plugin_imports_nothing_heavy() -> None:
    code = (
        "import sys, mappa_core.plugins as plugins\n"
        "assert 'dsbench' in plugins.load_plugins().plugins\n"
        "print(sorted({'torch', 'transformers', 'tokenizers', 'pandas', 'sklearn', 'scipy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_tiny_needs_nothing_that_is_not_installed(registry: Registry) -> None:
    tiny = recipe(registry, "tiny")
    tiny.require_installed()
    config = tiny.config
    assert config.tasks.use == "dsbench-embedded"
    assert config.engine.options.deterministic
    assert config.train.stratified
    assert config.policies["default"].model == "package:mappa_dsbench/models/tiny"


def test_paper_holds_every_published_value(registry: Registry) -> None:
    config = recipe(registry, "paper").config
    assert config.policies["default"].model == "Qwen/Qwen3-4B"
    train = config.train
    assert (train.iterations, train.prompts, train.samples, train.epochs) == (64 // 16 * 30, 16, 2, 1)
    assert train.stratified
    assert (train.learning_rate, train.schedule, train.min_lr_share) == (1e-6, "cosine", 0.1)
    assert (train.minibatch_rows, train.grad_clip, train.weight_decay, list(train.betas)) == (16, 1.0, 0.0, [0.9, 0.95])
    assert train.warmup_iterations == round(0.03 * train.iterations)
    assert (config.sampling.temperature, config.sampling.top_p, config.sampling.max_tokens) == (1.0, 1.0, 16384)
    assert (config.eval.temperature, config.eval.every, config.eval.samples) == (0.6, 2, 4)
    estimator = config.estimator
    assert (estimator.use, estimator.options.kl_coef, estimator.options.gamma) == ("reinforce_plus_plus", 0.01, 1.0)
    assert (config.loss.options.clip_low, config.loss.options.clip_high) == (0.2, 0.2)
    scale = config.shapers[0].options
    assert (scale.source_low, scale.source_high, scale.low, scale.high) == (0, 10, 0, 1)
    assert config.coach.options["model"] == "gemini-2.5-pro"
    assert config.coach.reference_for == ["analyst"]
    python = config.tools["python"]
    assert (python.use, python.limits.wall_s) == ("sandboxfusion", 60)
    assert config.workflow.options.turns == 4
    assert config.engine.options.max_model_len == 24576 + 16384
    assert (config.checkpoint.every, config.checkpoint.keep, config.seed) == (4, 10, 42)


def test_paper_says_what_is_not_installed(registry: Registry) -> None:
    paper = recipe(registry, "paper")
    absent = {one.name for one in paper.missing_offers}
    assert "gemini" in absent
    assert absent <= {"gemini", "sandboxfusion"}
    with pytest.raises(PluginError, match="not installed"):
        paper.require_installed()
