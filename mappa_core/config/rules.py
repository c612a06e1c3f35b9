"""Rules for values of the right type: counts below one, shares above one. `VALUE_RULES` are those of a run's config;
the options of an offer have theirs in a method `check`, which raises ConfigError: `FIELD: must be …`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import PurePath
from typing import Any, get_args

from mappa_core.config.layers import DEFAULT_ORIGIN, SettingsNode, iter_leaves
from mappa_core.config.schema import Use
from mappa_core.errors import ConfigError
from mappa_core.records import MAX_SCORE, Phase


@dataclass(frozen=True, slots=True)
class ValueRule:
    """Requirement on the values at `keys` (with `*` for names), which accepts null."""

    keys: tuple[str, ...]
    accepts: Callable[[Any], bool]
    requirement: str


def at_least(low: float, *keys: str) -> ValueRule:
    return ValueRule(keys, lambda value: low <= value < math.inf, f"at least {low:g} and finite")


def above(low: float, *keys: str) -> ValueRule:
    return ValueRule(keys, lambda value: low < value < math.inf, f"above {low:g} and finite")


def fraction(*keys: str) -> ValueRule:
    return ValueRule(keys, lambda value: 0.0 <= value <= 1.0, "a share from 0 to 1")


def check_fields(options: object, *rules: ValueRule) -> None:
    """Check fields in the method `check` of an options dataclass. Raises ConfigError: `FIELD: must be …`."""
    for rule in rules:
        for name in rule.keys:
            value = getattr(options, name)
            if value is not None and not rule.accepts(value):
                raise ConfigError(f"{name}: must be {rule.requirement}, not {value!r}")


def check_options(options: object, tree: SettingsNode, place: str) -> None:
    """Call `check` of an options dataclass and of those in it, where they have one; numbers must be finite unless the
    default is not. To an error that begins with `FIELD:` the key below `place` and the origin in `tree` are added."""
    names = {field.name: field for field in fields(options)}  # type: ignore[arg-type]  # a dataclass
    # A default may be infinite, as that of a limit that is off.
    given = tuple(name for name, field in names.items() if getattr(options, name) != field.default)
    are_finite = ValueRule(given, lambda value: not isinstance(value, float) or math.isfinite(value), "finite")
    try:
        check_fields(options, are_finite)
        check = getattr(options, "check", None)
        if callable(check):
            check()
    except ConfigError as error:
        # The option knows its field alone; where it stands in the config is known here.
        name = str(error).partition(":")[0]
        if name not in names:
            raise ConfigError(f"{place}: {error}") from error
        node = tree.at(f"{place}.{name}")
        raise ConfigError(f"{place}.{error} (set by {node.origin if node else DEFAULT_ORIGIN})") from error
    for name in names:
        value = getattr(options, name)
        if is_dataclass(value) and not isinstance(value, Use):
            check_options(value, tree, f"{place}.{name}")


VALUE_RULES = (
    at_least(0, "seed", "sampling.temperature", "sampling.top_k", "agents.*.temperature", "eval.temperature"),
    at_least(1, "sampling.max_tokens", "sampling.concurrency", "agents.*.max_tokens"),
    ValueRule(("sampling.top_p",), lambda value: 0.0 < value <= 1.0, "above 0 and at most 1"),
    above(0, "tools.*.limits.wall_s", "tools.*.limits.cpu_s", "coach.timeout_s"),
    at_least(1, "tools.*.limits.memory_mb", "tools.*.limits.file_mb", "tools.*.limits.output_kb"),
    at_least(1, "tools.*.limits.processes", "tools.*.limits.workspace_mb", "tools.*.limits.workspace_files"),
    at_least(0, "tools.*.retries", "train.max_restarts", "train.dynamic_sampling"),
    fraction("coach.max_missing", "train.min_lr_share", "train.max_tool_failure_share"),
    above(0, "coach.spend_usd"),
    at_least(1, "credit.counterfactual.samples", "policies.*.lora.rank", "train.mean_length"),
    ValueRule(("credit.counterfactual.share",), lambda part: 0.0 < part <= 1.0, "above 0 and at most 1"),
    at_least(1, "train.iterations", "train.prompts", "train.samples", "train.epochs"),
    at_least(1, "train.minibatch_rows", "train.micro_tokens", "train.max_skipped"),
    at_least(0, "train.warmup_iterations", "train.weight_decay", "train.value_coef", "train.entropy_coef"),
    above(0, "train.learning_rate", "train.grad_clip", "policies.*.lora.alpha"),
    ValueRule(("train.betas",), lambda betas: all(0.0 <= beta < 1 for beta in betas), "two numbers from 0 to below 1"),
    at_least(1, "train.correction.cap", "train.correction.geometric_high"),
    fraction("train.correction.floor", "train.correction.geometric_low"),
    above(0, "train.value_clip", "train.health.grad_norm", "train.health.kl"),
    fraction("train.health.entropy", "train.health.clip_share", "train.health.ess", "train.health.equal_groups"),
    ValueRule(("train.supervised.max_score",), lambda score: 0.0 <= score <= MAX_SCORE, "a score from 0 to 10 points"),
    at_least(1, "eval.problems", "eval.samples", "checkpoint.every", "checkpoint.keep", "prompts.every"),
    at_least(0, "eval.every", "train.supervised.weight"),
    ValueRule(("eval.selection",), lambda part: 0.0 < part < 1.0, "above 0 and below 1, or null"),
    ValueRule(("policies.*.lora.targets",), lambda names: len(names) > 0 and all(names), "null or names of layers"),
    ValueRule(("coach.reward.*",), math.isfinite, "finite"),
    ValueRule(("run.name",), lambda name: PurePath(name).name == name not in ("", ".."), "a plain name and no path"),
)


@lru_cache(maxsize=4096)
def _rules_of(key: str) -> tuple[ValueRule, ...]:
    return tuple(rule for rule in VALUE_RULES if any(fnmatchcase(key, pattern) for pattern in rule.keys))


def check_values(settings: SettingsNode) -> None:
    """Check a resolved config. Raises ConfigError with the key, the requirement and the origin of the value."""
    for key, node in iter_leaves(settings):
        for rule in _rules_of(key):
            if node.content is not None and not rule.accepts(node.plain):
                raise ConfigError(f"{key}: must be {rule.requirement}, not {node.plain!r} (set by {node.origin})")
    phases = get_args(Phase)
    for phase, node in settings.fields["coach"].fields["reward"].fields.items():
        if phase not in phases:
            raise ConfigError(f"coach.reward.{phase}: a phase is one of {', '.join(phases)} (set by {node.origin})")
    _check_mean(settings.fields["train"])
    for name, policy in settings.fields["policies"].fields.items():
        _check_start(f"policies.{name}", policy)


def _check_mean(train: SettingsNode) -> None:
    mean = train.fields["mean"]
    if mean.plain == "fixed" and train.fields["mean_length"].content is None:
        raise ConfigError(
            f"train.mean_length: train.mean=fixed divides by it, and it is not set (train.mean is set by "
            f"{mean.origin}). sampling.max_tokens is the usual one"
        )


def _check_start(key: str, policy: SettingsNode) -> None:
    start, kind = policy.fields["from"], policy.fields["kind"].plain
    if start.content is not None and kind not in ("full", "lora"):
        raise ConfigError(
            f"{key}.from: a policy of kind {kind} does not start with the weights of another run (set by "
            f"{start.origin}). Write a model folder of it (mappa export) and name that as {key}.model, or set "
            f"{key}.from=null"
        )
