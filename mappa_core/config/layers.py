"""Layered settings: trees that store the origin of every value. Mappings merge, everything else replaces, lists
included. A layer that writes a choice anew discards the `options` of the layers below it: one that names another `use`,
since they belong to the offer chosen before, and one that names `use` and `options`, since options describe each other
(the columns of a file are those of that file)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

DEFAULT_ORIGIN = "default"

Content = Mapping[str, "SettingsNode"] | tuple["SettingsNode", ...] | str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class SettingsNode:
    """Value and its origin: `default`, `command line`, or a source with a line number."""

    content: Content
    origin: str

    @property
    def fields(self) -> Mapping[str, SettingsNode]:
        """Entries; empty if this is no mapping."""
        return self.content if isinstance(self.content, Mapping) else {}

    @property
    def plain(self) -> Any:
        """Value without origins: dicts, lists and scalars."""
        if isinstance(self.content, Mapping):
            return {name: child.plain for name, child in self.content.items()}
        if isinstance(self.content, tuple):
            return [child.plain for child in self.content]
        return self.content

    def at(self, key: str) -> SettingsNode | None:
        """Return the node at a dotted key, with list indices from 0; None if there is none."""
        node: SettingsNode | None = self
        for part in key.split("."):
            if node is None:
                return None
            if isinstance(node.content, tuple):
                items = dict(enumerate(node.content))
                node = items.get(int(part)) if part.isdecimal() else None
            else:
                node = node.fields.get(part)
        return node

    def with_origins(self, origins: Mapping[str, str]) -> SettingsNode:
        """Return the tree with its origins replaced as in `origins`."""
        content: Content = self.content
        if isinstance(content, Mapping):
            content = {name: child.with_origins(origins) for name, child in content.items()}
        elif isinstance(content, tuple):
            content = tuple(child.with_origins(origins) for child in content)
        return SettingsNode(content, origins.get(self.origin, self.origin))


def with_origin(value: Any, origin: str) -> SettingsNode:
    """Convert a plain value to a tree with one origin for all nodes."""
    if isinstance(value, Mapping):
        return SettingsNode({str(name): with_origin(child, origin) for name, child in value.items()}, origin)
    if isinstance(value, list | tuple):
        return SettingsNode(tuple(with_origin(child, origin) for child in value), origin)
    return SettingsNode(value, origin)


def merge(low: SettingsNode, high: SettingsNode, *, keep_options: bool = False) -> SettingsNode:
    """Merge `high` over `low`. `keep_options` is for parts of one choice, whose `use` and `options` belong together."""
    if not isinstance(low.content, Mapping) or not isinstance(high.content, Mapping):
        return high
    fields = dict(low.content)
    if _is_written_anew(fields, high.content) and not keep_options:
        fields.pop("options", None)
    for name, child in high.content.items():
        fields[name] = merge(fields[name], child, keep_options=keep_options) if name in fields else child
    return SettingsNode(fields, high.origin)


def _is_written_anew(low: Mapping[str, SettingsNode], high: Mapping[str, SettingsNode]) -> bool:
    chosen = high.get("use")
    if chosen is None or "use" not in low:
        return False
    return "options" in high or low["use"].content != chosen.content


def copy_origins(value: Any, sources: SettingsNode | None) -> SettingsNode:
    """Convert a plain resolved value to a tree with the origins of `sources`, or `default` where it has none."""
    origin = DEFAULT_ORIGIN if sources is None else sources.origin
    if isinstance(value, Mapping):
        known = sources.fields if sources is not None else {}
        return SettingsNode({name: copy_origins(child, known.get(name)) for name, child in value.items()}, origin)
    if isinstance(value, list | tuple):
        items = sources.content if sources is not None and isinstance(sources.content, tuple) else ()
        return SettingsNode(tuple(copy_origins(child, item) for child, item in zip_longest(value, items)), origin)
    return SettingsNode(value, origin)


def is_leaf(node: SettingsNode) -> bool:
    """Whether a node is written on one line: a scalar, an empty value, or a list of scalars."""
    if isinstance(node.content, tuple):
        return all(is_leaf(item) and not isinstance(item.content, Mapping) for item in node.content)
    return not isinstance(node.content, Mapping) or not node.content


def iter_leaves(node: SettingsNode, key: str = "") -> Iterator[tuple[str, SettingsNode]]:
    """Iterate over all leaves with their dotted keys, in order."""
    if is_leaf(node):
        yield key, node
        return
    inside = enumerate(node.content) if isinstance(node.content, tuple) else node.fields.items()
    for name, child in inside:
        yield from iter_leaves(child, f"{key}.{name}" if key else str(name))
