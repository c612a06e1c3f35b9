"""What the plugin offers, and that its recipes say what was published."""

from __future__ import annotations

import subprocess
import sys

import pytest

from mappa.sessions import ComposedConfig, compose
from mappa.testing import load_plugins
from mappa_core import PluginError, Registry
from mappa_mathchat.cli import command


@pytest.fixture(scope="module")
def registry() -> Registry:
    """Without the coaches that may be installed beside it: what a recipe says of one that is not stays a mapping."""
    return load_plugins(only=("look", "engine", "mathchat", "sandbox"))


def recipe(registry: Registry, name: str) -> ComposedConfig:
    return compose(registry, "mathchat", name)


def test_the_plugin_loads_whole(registry: Registry) -> None:
    plugin = registry.plugin("mathchat")
    assert set(plugin.recipes) == {"tiny", "small", "small-full", "paper", "paper-1.5b", "paper-outcome", "smol"}
    assert {*command.commands} == {"prepare", "examples", "warm-start"}
    assert (
        registry.offer("workflows", "mathchat")
        and registry.offer("tasks", "words")
        and registry.offer("tasks", "stories")
    )
    assert registry.offer("coaches", "mathchat-rules")


def test_loading_the_plugin_imports_nothing_heavy() -> None:
    code = (
        "import sys, mappa_core.plugins as plugins\n"
        "assert 'mathchat' in plugins.load_plugins().plugins\n"
        "print(sorted({'torch', 'transformers', 'sympy', 'tokenizers', 'math_verify'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_tiny_needs_nothing_that_is_not_installed(registry: Registry) -> None:
    tiny = recipe(registry, "tiny")
    tiny.require_installed()
    config = tiny.config
    assert (config.train.iterations, config.train.prompts, config.train.samples) == (60, 16, 2)
    assert config.engine.options.deterministic
    assert config.tasks.options.eval == 256 and config.eval.temperature == 1.0
    assert config.coach.reference_for == ["problem_solver", "verifier"]
    assert config.policies["default"].model == "package:mappa_mathchat/models/tiny"


def test_paper_holds_every_published_value(registry: Registry) -> None:
    config = recipe(registry, "paper").config
    assert config.policies["default"].model == "Qwen/Qwen3-4B-Thinking-2507"
    train = config.train
    assert (train.iterations, train.prompts, train.samples, train.epochs) == (512 // 32 * 8, 32, 2, 1)
    assert (train.learning_rate, train.schedule, train.min_lr_share) == (1e-6, "cosine", 0.1)
    assert (train.minibatch_rows, train.grad_clip, train.weight_decay, list(train.betas)) == (16, 1.0, 0.0, [0.9, 0.95])
    assert train.warmup_iterations == round(0.03 * train.iterations)
    assert (config.sampling.temperature, config.sampling.top_p, config.sampling.max_tokens) == (1.0, 1.0, 4096)
    assert (config.eval.temperature, config.eval.every, config.eval.samples) == (0.6, 4, 4)
    estimator = config.estimator
    assert (estimator.use, estimator.options.kl_coef, estimator.options.gamma) == ("reinforce_plus_plus", 0.01, 1.0)
    assert (config.loss.options.clip_low, config.loss.options.clip_high) == (0.2, 0.2)
    scale = config.shapers[0].options
    assert (scale.source_low, scale.source_high, scale.low, scale.high) == (0, 10, 0, 1)
    assert config.coach.options["model"] == "gemini-2.5-flash"
    assert config.coach.reference_for == ["verifier"]
    assert config.tools["python"].limits.wall_s == 30
    assert config.workflow.options.coder_turns == 2
    assert (config.checkpoint.every, config.checkpoint.keep, config.seed) == (32, 10, 42)


def test_paper_says_what_is_not_installed(registry: Registry) -> None:
    paper = recipe(registry, "paper")
    absent = {one.name for one in paper.missing_offers}
    assert "gemini" in absent
    assert absent <= {"gemini", "sandboxfusion"}
    with pytest.raises(PluginError, match="not installed"):
        paper.require_installed()


def test_the_other_paper_recipes_differ_in_one_thing(registry: Registry) -> None:
    paper, small, outcome = (recipe(registry, name) for name in ("paper", "paper-1.5b", "paper-outcome"))
    assert small.config.policies["default"].model == "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"
    assert small.config.train == paper.config.train == outcome.config.train
    assert [shaper.use for shaper in outcome.config.shapers] == ["outcome"]
    assert outcome.config.coach.use == "mathchat-rules"
