"""Differences between two configs, and which of them a resumed run may have."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from mappa.config.compose import ComposedConfig
from mappa_core.config.layers import SettingsNode, iter_leaves
from mappa_core.errors import ConfigError

ALLOWED_ON_RESUME = (
    "run", "train.iterations", "train.health", "train.max_tool_failure_share", "train.max_skipped", "trackers",
    "train.max_restarts", "tools.*.retries", "workflow.options.on_divergence", "checkpoint.every", "checkpoint.keep",
    "checkpoint.url", "coach.timeout_s", "coach.max_missing", "coach.spend_usd", "coach.cassette", "*.options.alarms",
    "engine.options.address", "engine.options.*_s", "engine.options.learner_ranks", "engine.options.zero",
)  # fmt: skip
"""Keys (`*` matches any name), including everything below them, that do not affect what was recorded so far."""
_ITERATIONS = "train.iterations"


@dataclass(frozen=True, slots=True)
class Change:
    """One value that differs; None is a missing key, too, or an empty list or mapping."""

    key: str
    old: Any
    new: Any
    origin: str  # Of the new value.

    @property
    def allowed_on_resume(self) -> bool:
        """Whether a resumed run may make this change."""
        return any(fnmatchcase(self.key, free) or fnmatchcase(self.key, f"{free}.*") for free in ALLOWED_ON_RESUME)

    def __str__(self) -> str:
        return f"{self.key}: {self.old!r} -> {self.new!r} ({self.origin})"


def diff_configs(old: ComposedConfig, new: ComposedConfig) -> tuple[Change, ...]:
    """List all values that differ, in the order of the config."""
    return diff_settings(old.settings, new.settings)


def diff_settings(old: SettingsNode, new: SettingsNode) -> tuple[Change, ...]:
    """List all values that differ between two trees of settings."""
    before, after = dict(iter_leaves(old)), dict(iter_leaves(new))
    changes = []
    for key in dict.fromkeys((*before, *after)):
        old_leaf, new_leaf = before.get(key), after.get(key)
        origin = "no longer set" if new_leaf is None else new_leaf.origin
        changes.append(Change(key, leaf_value(old_leaf), leaf_value(new_leaf), origin))
    return tuple(change for change in changes if change.old != change.new)


def check_resume_changes(old: ComposedConfig, new: ComposedConfig) -> None:
    """Raise ConfigError with the differences if `new` changes a value that a resumed run must keep."""
    schedule = old.config.train.schedule
    changes = diff_configs(old, new)
    falls = schedule != "constant" and any(change.key == _ITERATIONS for change in changes)
    refused = [change for change in changes if not change.allowed_on_resume or (falls and change.key == _ITERATIONS)]
    if not refused:
        return
    listed = "\n".join(f"  {change}" for change in refused)
    reason = ""
    if falls:
        reason = (
            f"\n{_ITERATIONS} is not among them here, as the learning rate falls over all iterations "
            f"(train.schedule={schedule}): what was learned so far belongs to a run of the length that it was given. "
            "A new run goes on from its weights with policies.default.from=RUN@last."
        )
    raise ConfigError(
        f"a resumed run may change only {', '.join(ALLOWED_ON_RESUME)}. This differs:\n{listed}{reason}\n"
        "Start a new run for it (leave --resume out)."
    )


def leaf_value(leaf: SettingsNode | None) -> Any:
    """Plain value of a leaf; None for an empty list or mapping."""
    return None if leaf is None or leaf.content in ((), {}) else leaf.plain
