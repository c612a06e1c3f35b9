"""Checks of a sweep's arms before anything starts: that they differ, and that their runs can be compared."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Any

from mappa.config.compose import ComposedConfig
from mappa.look.run_results import digest_task
from mappa_core import ConfigError, InputError
from mappa_core.plugins import Registry

_COMPARED = ("workflow.use", "eval.samples", "eval.temperature")
"""Settings that runs must share to be compared, beside their held-out tasks."""


def check_arms(registry: Registry, arms: Mapping[str, ComposedConfig]) -> None:
    """Check the arms of a sweep, named by their settings.

    Raises:
        ConfigError: two have equal settings, or would be evaluated so that `RunResult.require_comparable` refuses them.
    """
    for (one, mine), (other, theirs) in combinations(arms.items(), 2):
        if mine.recipe_hash == theirs.recipe_hash:
            raise ConfigError(f"{one} and {other} are one setting twice: leave one of them out")
    tasks = _HeldOutTasks(registry)
    first = next(iter(arms.items()))
    for name, composed in arms.items():
        if why := _mismatch(first[1], composed) or tasks.mismatch(first[1], composed):
            raise ConfigError(
                f"runs with {first[0]} and with {name} could not be compared, for {why}: vary what does not "
                "change the evaluation"
            )


def _mismatch(one: ComposedConfig, other: ComposedConfig) -> str | None:
    """How two evaluations differ by their settings alone; None if they do not."""
    for key in _COMPARED:
        mine, theirs = _value(one, key), _value(other, key)
        if mine != theirs:
            return f"they differ in {key} ({mine} and {theirs})"
    shares = {_selection_share(one), _selection_share(other)}
    return "they choose their checkpoint on other tasks (checkpoint.best, eval.selection)" if len(shares) > 1 else None


def _value(composed: ComposedConfig, key: str) -> Any:
    node = composed.settings.at(key)
    return None if node is None else node.plain


def _selection_share(composed: ComposedConfig) -> float | None:
    """The share of the held-out tasks that is not reported."""
    return composed.config.eval.selection if composed.config.checkpoint.best else None


class _HeldOutTasks:
    """Held-out tasks of arms, loaded only where settings of theirs differ."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def mismatch(self, one: ComposedConfig, other: ComposedConfig) -> str | None:
        """How the held-out tasks differ; None if they do not, or cannot be loaded here."""
        keys = [key for key in ("tasks", "eval.problems", "eval.split") if _value(one, key) != _value(other, key)]
        try:
            if not keys or self._load(one) == self._load(other):
                return None
        except InputError:
            return None
        return f"they evaluate other tasks ({', '.join(keys)})"

    def _load(self, composed: ComposedConfig) -> dict[str, str]:
        config = composed.config
        source = self._registry.build("tasks", config.tasks.use, config.tasks.options)
        return {task.id: digest_task(task) for task in source.load(config.eval.split)[: config.eval.problems]}
