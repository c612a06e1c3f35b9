"""What a run keeps of a judging: which coach with which options, and the distribution and version that brought it."""

from __future__ import annotations

from mappa.config.compose import ComposedConfig
from mappa.store.writer import Store
from mappa_core import Split
from mappa_core.plugins import Registry

JUDGE_EVENT = "judge"


def record_judging(store: Store, registry: Registry, composed: ComposedConfig, *, name: str, split: Split) -> None:
    """Record that the coach of `composed` judges; the ids of its verdicts end in `name`."""
    used = composed.config.coach.use
    plugin = next(plugin for plugin in registry.plugins.values() if used in plugin.offers["coaches"])
    store.record_event(
        JUDGE_EVENT,
        name=name,
        split=split,
        coach=composed.document["coach"],
        package=plugin.package,
        version=plugin.version,
    )
