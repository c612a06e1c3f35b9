"""Renamed settings: a former key is read for one release, with a warning that names the new one. The field of a
section, or of an offer's options dataclass, has it in its metadata: `{"former_key": "most"}`. Settings that are gone
are refused, with what to use instead, and left out of stored configs."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import fields, replace

from mappa.config.validate import field_hints, map_section, setting_key
from mappa_core.config.layers import SettingsNode, merge
from mappa_core.config.schema import FORMER_KEY, RunConfig
from mappa_core.errors import ConfigError
from mappa_core.plugins import OfferKind, Registry

SECTION_KINDS: Mapping[str, OfferKind] = {
    "tasks": "tasks", "workflow": "workflows", "tools": "tools", "policies": "policies", "coach": "coaches",
    "shapers": "shapers", "estimator": "estimators", "prompts": "prompt_optimizers", "loss": "losses",
    "engine": "engines", "trackers": "trackers",
}  # fmt: skip
"""Kind of the offers that are chosen in a top-level section."""

REMOVED_SETTINGS = dict.fromkeys(
    ("coach.strata", "coach.bias", "coach.drift"),
    "the coach bias_corrected of mappa-calibration corrects bias and watches drift now: "
    "coach={use: bias_corrected, options: {coach: {use: …, options: …}, strata: […]}}",
)
"""Settings of the last release that are gone, with what to use instead."""


class RenamedSettingWarning(FutureWarning):
    """Settings are given by their former keys."""


def merge_layer(registry: Registry, tree: SettingsNode, layer: SettingsNode) -> SettingsNode:
    """Merge `layer` over `tree`, which has no former keys, and rename those of `layer`: one warning lists them all.
    Raises ConfigError if `layer` gives both keys of one setting, or one that is gone."""
    for key, instead in REMOVED_SETTINGS.items():
        if (node := layer.at(key)) is not None:
            raise ConfigError(f"{key}: not a setting any more: {instead} (set by {node.origin})")
    return _Renamer(registry, layer).rename_all(RunConfig, merge(tree, layer), "")


def drop_removed(settings: SettingsNode) -> SettingsNode:
    """Leave the settings that are gone out of a stored config; one warning lists them all."""
    found = [key for key in REMOVED_SETTINGS if settings.at(key) is not None]
    for section, _, name in (key.partition(".") for key in found):
        own = settings.fields[section]
        kept = {one: child for one, child in own.fields.items() if one != name}
        settings = replace(settings, content={**settings.fields, section: replace(own, content=kept)})
    if found:
        text = "is read without settings that are gone, and goes on without them when it is resumed"
        warnings.warn(f"the run {text}: {', '.join(found)}: {REMOVED_SETTINGS[found[0]]}", RenamedSettingWarning, 4)
    return settings


def rename_options(registry: Registry, kind: OfferKind, schema: type, tree: SettingsNode, place: str) -> SettingsNode:
    """Rename former keys in the options of an offer at the top-level key `place` of `tree`, as `merge_layer`."""
    if place not in tree.fields:
        return tree
    renamed = _Renamer(registry, tree, kind).rename_all(schema, tree.fields[place], place)
    return replace(tree, content={**tree.fields, place: renamed})


class _Renamer:
    def __init__(self, registry: Registry, layer: SettingsNode, kind: OfferKind | None = None) -> None:
        self._registry = registry
        self._layer = layer
        self._kind = kind  # Of all offers; None: that of their section.
        self._found: list[str] = []

    def rename_all(self, schema: type, node: SettingsNode, key: str) -> SettingsNode:
        """Rename as `rename`, and warn."""
        renamed = self.rename(schema, node, key)
        if self._found:
            text = "settings have new names; their former ones are read for one more release:"
            warnings.warn("\n  ".join((text, *self._found)), RenamedSettingWarning, stacklevel=4)
        return renamed

    def rename(self, schema: type, node: SettingsNode, key: str) -> SettingsNode:
        """Rename the former keys in the section `node` at `key`, and below."""
        if not isinstance(node.content, Mapping):
            return node
        content = dict(node.content)
        for field in fields(schema):
            former, name = field.metadata.get(FORMER_KEY), setting_key(field)
            if former in content:
                moved = content.pop(former)
                self._record(key, former, name, moved)
                content[name] = merge(content[name], moved) if name in content else moved
        for name, hint in field_hints(schema).items():
            if name in content:
                content[name] = map_section(hint, content[name], f"{key}.{name}" if key else name, self.rename)
        if {"use", "options"} <= content.keys() & field_hints(schema).keys():
            content["options"] = self._rename_options(content["use"].content, content["options"], key)
        return replace(node, content=content)

    def _record(self, section: str, former: str, name: str, moved: SettingsNode) -> None:
        prefix = f"{section}." if section else ""
        other = self._layer.at(f"{prefix}{name}")
        if other is not None:
            raise ConfigError(
                f"{prefix}{name} (set by {other.origin}) is given as {prefix}{former} too, its former name "
                f"(set by {moved.origin}). Leave {former} out"
            )
        self._found.append(f"{prefix}{former} is now {prefix}{name} (set by {moved.origin})")

    def _rename_options(self, use: object, options: SettingsNode, key: str) -> SettingsNode:
        """Rename former keys in the options of the offer `use`, if it is installed."""
        kind = self._kind or SECTION_KINDS[key.partition(".")[0]]
        if use not in self._registry.names(kind):
            return options
        return self.rename(self._registry.offer(kind, str(use)).options, options, f"{key}.options")
