"""Rules for values that have the right type but an invalid value: counts below one, shares above one, unknown names."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePath
from typing import Any, get_args, get_type_hints

from mappa_core.config.layers import SettingsNode, iter_leaves
from mappa_core.errors import ConfigError
from mappa_core.protocols import PolicySpec, Split
from mappa_core.records import MAX_SCORE, Phase

LR_SCHEDULES = ("constant", "linear", "cosine")
CORRECTION_KINDS = ("truncate", "mask", "none")
CORRECTION_LEVELS = ("token", "sequence")
LOSS_MEANS = ("token", "sequence", "fixed")
REPLACEMENTS = ("none", "sibling", "resample", "default")
CASSETTE_MODES = ("off", "record", "replay", "auto")
ALARM_RESPONSES = ("warn", "correct", "pause")
"""Allowed responses to a drift alarm."""


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


def one_of(names: Iterable[str], *keys: str) -> ValueRule:
    known = tuple(names)
    return ValueRule(keys, lambda value: value in known, f"one of {', '.join(known)}")


VALUE_RULES = (
    at_least(0, "seed", "sampling.temperature", "sampling.top_k", "agents.*.temperature", "eval.temperature"),
    at_least(1, "sampling.max_tokens", "sampling.concurrency", "agents.*.max_tokens"),
    ValueRule(("sampling.top_p",), lambda value: 0.0 < value <= 1.0, "above 0 and at most 1"),
    above(0, "tools.*.limits.wall_s", "tools.*.limits.cpu_s", "coach.timeout_s"),
    at_least(1, "tools.*.limits.memory_mb", "tools.*.limits.file_mb", "tools.*.limits.output_kb"),
    at_least(1, "tools.*.limits.processes", "tools.*.limits.workspace_mb", "tools.*.limits.workspace_files"),
    at_least(0, "tools.*.retries", "train.max_restarts"),
    fraction("coach.max_missing", "train.min_lr_share", "train.max_tool_failure_share"),
    above(0, "coach.spend_usd", "coach.bias.max_points"),
    at_least(0, "coach.bias.shrink", "coach.drift.min_gap"),
    ValueRule(("coach.bias.decay",), lambda decay: 0.0 < decay <= 1.0, "above 0 and at most 1"),
    one_of(REPLACEMENTS, "credit.counterfactual.use"),
    at_least(1, "credit.counterfactual.samples"),
    ValueRule(("credit.counterfactual.share",), lambda part: 0.0 < part <= 1.0, "above 0 and at most 1"),
    one_of(CASSETTE_MODES, "coach.cassette.mode"),
    one_of(ALARM_RESPONSES, "coach.drift.level", "coach.drift.widening"),
    at_least(1, "train.iterations", "train.prompts", "train.samples", "train.epochs"),
    at_least(1, "train.minibatch_rows", "train.micro_tokens", "train.max_skipped"),
    at_least(0, "train.warmup_iterations", "train.weight_decay", "train.value_coef"),
    above(0, "train.learning_rate", "train.grad_clip"),
    ValueRule(
        ("train.betas",), lambda betas: all(0.0 <= beta < 1.0 for beta in betas), "two numbers from 0 to below 1"
    ),
    one_of(LR_SCHEDULES, "train.schedule"),
    one_of(CORRECTION_KINDS, "train.correction.kind"),
    one_of(CORRECTION_LEVELS, "train.correction.level"),
    at_least(1, "train.correction.cap"),
    fraction("train.correction.floor"),
    one_of(LOSS_MEANS, "train.mean"),
    at_least(1, "train.mean_length"),
    at_least(0, "train.entropy_coef"),
    above(0, "train.value_clip", "train.health.grad_norm", "train.health.kl"),
    fraction("train.health.entropy", "train.health.clip_share", "train.health.ess", "train.health.equal_groups"),
    at_least(0, "train.supervised.weight"),
    ValueRule(("train.supervised.max_score",), lambda score: 0.0 <= score <= MAX_SCORE, "a score from 0 to 10 points"),
    at_least(1, "eval.problems", "eval.samples", "checkpoint.every", "checkpoint.keep"),
    at_least(0, "eval.every"),
    one_of(get_args(Split), "eval.split"),
    ValueRule(("eval.selection",), lambda part: 0.0 < part < 1.0, "above 0 and below 1, or null"),
    one_of((*get_args(get_type_hints(PolicySpec)["kind"]), "api"), "policies.*.kind"),
    at_least(1, "policies.*.lora.rank"),
    above(0, "policies.*.lora.alpha"),
    ValueRule(("policies.*.lora.targets",), lambda names: len(names) > 0 and all(names), "null or names of layers"),
    ValueRule(("coach.reward.*",), math.isfinite, "finite"),
    ValueRule(("run.name",), lambda name: PurePath(name).name == name not in ("", ".."), "a plain name and no path"),
)


def check_values(settings: SettingsNode) -> None:
    """Check a resolved config. Raises ConfigError with the key, the requirement and the origin of the value."""
    for key, node in iter_leaves(settings):
        for rule in VALUE_RULES:
            applies = any(fnmatchcase(key, pattern) for pattern in rule.keys)
            if applies and node.content is not None and not rule.accepts(node.plain):
                raise ConfigError(f"{key}: must be {rule.requirement}, not {node.plain!r} (set by {node.origin})")
    _check_reward(settings.fields["coach"].fields["reward"])
    _check_mean(settings.fields["train"])
    for name, policy in settings.fields["policies"].fields.items():
        _check_start(f"policies.{name}", policy)


def _check_reward(reward: SettingsNode) -> None:
    phases = get_args(Phase)
    for phase, node in reward.fields.items():
        if phase not in phases:
            raise ConfigError(f"coach.reward.{phase}: a phase is one of {', '.join(phases)} (set by {node.origin})")


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
