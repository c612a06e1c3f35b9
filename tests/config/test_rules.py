"""Values of the right type that make no sense."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest

from mappa.config.compose import compose
from mappa.testing import load_plugins
from mappa_core import ConfigError
from mappa_core.config.rules import VALUE_RULES


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("train.iterations=0", "must be at least 1 and finite, not 0"),
        ("train.samples=-1", "must be at least 1 and finite, not -1"),
        ("train.minibatch_rows=0", "must be at least 1 and finite, not 0"),
        ("train.learning_rate=0", "must be above 0 and finite, not 0.0"),
        ("train.learning_rate=.inf", "must be above 0 and finite, not inf"),
        ("train.weight_decay=.nan", "must be at least 0 and finite, not nan"),
        ("train.schedule=cosin", "must be one of constant, linear, cosine, not 'cosin'"),
        ("train.correction.kind=clip", "must be one of truncate, mask, none, not 'clip'"),
        ("train.correction.level=row", "must be one of token, sequence, not 'row'"),
        ("train.correction.cap=0.5", "must be at least 1 and finite, not 0.5"),
        ("train.betas=[0.9, 1.0]", "must be two numbers from 0 to below 1, not [0.9, 1.0]"),
        ("train.min_lr_share=1.5", "must be a share from 0 to 1, not 1.5"),
        ("sampling.temperature=-0.1", "must be at least 0 and finite, not -0.1"),
        ("sampling.top_p=0", "must be above 0 and at most 1, not 0.0"),
        ("coach.max_missing=2", "must be a share from 0 to 1, not 2.0"),
        ("train.max_tool_failure_share=1.1", "must be a share from 0 to 1, not 1.1"),
        ("tools.echo.retries=-1", "must be at least 0 and finite, not -1"),
        ("tools.echo.limits.processes=0", "must be at least 1 and finite, not 0"),
        ("tools.echo.limits.workspace_mb=0", "must be at least 1 and finite, not 0"),
        ("tools.echo.limits.workspace_files=0", "must be at least 1 and finite, not 0"),
        ("coach.timeout_s=0", "must be above 0 and finite, not 0.0"),
        ("coach.reward.live=.nan", "must be finite, not nan"),
        ("coach.reward.before=1", "a phase is one of live, after, again"),
        ("policies.judge.kind=dora", "must be one of full, lora, frozen, api, not 'dora'"),
        ("policies.judge.lora.rank=0", "must be at least 1 and finite, not 0"),
        ("policies.judge.lora.alpha=0", "must be above 0 and finite, not 0.0"),
        ("policies.judge.lora.targets=[]", "must be null or names of layers, not []"),
        ("agents.solo.max_tokens=0", "must be at least 1 and finite, not 0"),
        ("tools.echo.limits.wall_s=0", "must be above 0 and finite, not 0.0"),
        ("eval.split=test", "must be one of train, eval, not 'test'"),
        ("run.name=a/b", "must be a plain name and no path, not 'a/b'"),
        ("run.name=..", "must be a plain name and no path, not '..'"),
    ],
)
def test_value_out_of_range_is_an_error_with_key_rule_and_layer(acme, word, message):
    with pytest.raises(ConfigError) as caught:
        compose(load_plugins(), "acme", overrides=[word])
    key = word.partition("=")[0]
    assert str(caught.value).startswith(f"{key}: {message}")
    assert str(caught.value).endswith("(set by command line)")


@pytest.mark.parametrize("word", ["sampling.temperature=0", "train.minibatch_rows=null", "coach.reward={live: 0.0}"])
def test_unusual_values_are_allowed(acme, word):
    compose(load_plugins(), "acme", overrides=[word])


OPTIONAL = ("agents.a.max_tokens=1", "agents.a.temperature=1", "prompts.use=acme_prompts")


def test_every_rule_is_about_a_setting_that_exists(acme):
    composed = compose(load_plugins(), "acme", overrides=[*OPTIONAL])
    for pattern in (pattern for rule in VALUE_RULES for pattern in rule.keys):
        assert any(fnmatchcase(key, pattern) for key in composed.origins), pattern


@pytest.mark.parametrize("kind", ["frozen", "api"])
def test_only_trained_policies_start_with_weights_of_another_run(acme, kind):
    judge = f"policies.judge={{kind: {kind}, model: m, from: first@best, use: openai, options: {{model: m}}}}"
    with pytest.raises(ConfigError, match=rf"policies\.judge\.from: a policy of kind {kind} does not start") as caught:
        compose(load_plugins(), "acme", overrides=[judge])
    assert "(set by command line)" in str(caught.value)


@pytest.mark.parametrize("kind", ["full", "lora"])
def test_field_start_is_set_by_the_key_from_alone(acme, kind):
    composed = compose(
        load_plugins(), "acme", overrides=[f"policies.judge={{kind: {kind}, model: m, from: first@best}}"]
    )
    assert composed.config.policies["judge"].start == "first@best"
    assert composed.origins["policies.judge.from"] == "command line"
    assert "policies.judge.start" not in composed.origins
    for word in ("policies.judge.start=first@best", "policies.judge.form=first@best"):
        with pytest.raises(ConfigError, match=r"policies\.judge\.(start|form): not a setting .*policies|from"):
            compose(load_plugins(), "acme", overrides=[word])
    with pytest.raises(ConfigError, match=r"policies\.judge\.from: \['a'\] is not text or null"):
        compose(load_plugins(), "acme", overrides=["policies.judge.from=[a]"])


OPTIONS = """
from dataclasses import dataclass, field
from mappa_core import ConfigError

@dataclass
class Inner:
    size: int = 1

    def check(self):
        if self.size < 1:
            raise ConfigError(f"size: must be at least 1, not {self.size}")

@dataclass
class Checked:
    inner: Inner = field(default_factory=Inner)
    low: int = 0
    high: int = 9
    share: float = 0.5
    bound: float = float("inf")

    def check(self):
        if self.low > self.high:
            raise ConfigError("low and high are the wrong way round")

@hookimpl
def mappa_coaches():
    yield Offer("checked", lambda options: options, Checked)
"""


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("coach.options.inner.size=0", "coach.options.inner.size: must be at least 1, not 0 (set by command line)"),
        ("coach.options.low=10", "coach.options: low and high are the wrong way round"),
        ("coach.options.share=.nan", "coach.options.share: must be finite, not nan (set by command line)"),
        ("coach.options.bound=-.inf", "coach.options.bound: must be finite, not -inf (set by command line)"),
    ],
)
def test_options_check_themselves_at_any_depth(acme, word, message):
    acme.write("checked", OPTIONS)
    with pytest.raises(ConfigError) as caught:
        compose(load_plugins(), "acme", overrides=["coach.use=checked", word])
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("word", "key", "message"),
    [
        ("estimator={use: reinforce_plus_plus, options: {kl_coef: .nan}}", "", "kl_coef: must be finite, not nan"),
        ("estimator={use: gae, options: {kl_coef: -1}}", "", "kl_coef: must be at least 0 and finite, not -1.0"),
        ("estimator={use: rloo, options: {kl_coef: -1}}", "", "kl_coef: must be at least 0 and finite, not -1.0"),
        ("estimator={use: grpo, options: {eps: .inf}}", "", "eps: must be finite, not inf"),
        ("estimator={use: gigpo, options: {step_weight: .nan}}", "", "step_weight: must be finite, not nan"),
        ("shapers=[{use: scale, options: {high: .inf}}]", "0", "high: must be finite, not inf"),
        ("shapers=[{use: outcome, options: {scale: .nan}}]", "0", "scale: must be finite, not nan"),
        ("shapers=[{use: outcome_mix, options: {process_weight: .nan}}]", "0", "process_weight: must be finite"),
        ("shapers=[{use: difference, options: {weight: -.inf}}]", "0", "weight: must be finite"),
        ("shapers=[{use: length_penalty, options: {limit: 8, buffer: 4, factor: .nan}}]", "0", "factor: must be fin"),
    ],
)
def test_numbers_of_estimators_and_shapers_are_finite(acme, word, key, message):
    with pytest.raises(ConfigError) as caught:
        compose(load_plugins(), "acme", overrides=[word])
    section = word.split("=")[0].split(".")[0]
    assert str(caught.value).startswith(".".join(one for one in (section, key, "options", message) if one))
