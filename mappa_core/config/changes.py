"""What differs between two configs, and which of it a resumed run may change."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from mappa_core.config.compose import Composed
from mappa_core.config.layers import Node, leaves
from mappa_core.errors import ConfigError

FREE_ON_RESUME = (
    "run",
    "train.iterations",
    "train.health",
    "train.max_lost",
    "train.max_skipped",
    "train.max_restarts",
    "tools.*.retries",
    "workflow.options.on_divergence",
    "trackers",
    "checkpoint.every",
    "checkpoint.keep",
    "checkpoint.url",
    "coach.timeout_s",
    "coach.max_missing",
    "coach.spend_usd",
    "coach.cassette",
    "coach.drift",
)
"""Keys (`*` is any name), with all below them, that do not decide what was recorded so far."""


@dataclass(frozen=True, slots=True)
class Change:
    """One value that differs; None stands also for a key that is not there and for what is empty."""

    key: str
    old: Any
    new: Any
    origin: str
    """Who set the new value."""

    @property
    def free_on_resume(self) -> bool:
        """Whether a resumed run may make this change."""
        return any(fnmatchcase(self.key, free) or fnmatchcase(self.key, f"{free}.*") for free in FREE_ON_RESUME)

    def __str__(self) -> str:
        return f"{self.key}: {self.old!r} -> {self.new!r} ({self.origin})"


def difference(old: Composed, new: Composed) -> tuple[Change, ...]:
    """Every value that differs, in the order of the config."""
    before, after = dict(leaves(old.settings)), dict(leaves(new.settings))
    changes = []
    for key in dict.fromkeys((*before, *after)):
        was, now = before.get(key), after.get(key)
        if _value(was) != _value(now):
            changes.append(Change(key, _value(was), _value(now), origin=now.origin if now else "no longer set"))
    return tuple(changes)


def refuse_on_resume(old: Composed, new: Composed) -> None:
    """Raise ConfigError where `new` changes what a resumed run cannot change, showing the difference."""
    refused = [change for change in difference(old, new) if not change.free_on_resume]
    if refused:
        listed = "\n".join(f"  {change}" for change in refused)
        raise ConfigError(
            f"a resumed run may change only {', '.join(FREE_ON_RESUME)}. This differs:\n{listed}\n"
            "Start a new run for it (leave --resume out)."
        )


def _value(leaf: Node | None) -> Any:
    """What stands at a leaf; an empty list or mapping is as much as none."""
    return None if leaf is None or leaf.content in ((), {}) else leaf.plain
