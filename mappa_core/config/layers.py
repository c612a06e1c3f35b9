"""Layers of settings: trees that remember, for every value, who set it and where.

A layer is laid over the ones below it: mappings merge, everything else replaces, lists included. Choosing another `use`
starts its `options` afresh, since they belong to the offer that was chosen before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

DEFAULT = "default"

Content = Mapping[str, "Node"] | tuple["Node", ...] | str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Node:
    """A value and its origin: `default`, `command line`, or a source and a line."""

    content: Content
    origin: str

    @property
    def fields(self) -> Mapping[str, Node]:
        """The entries of a mapping; none where this is no mapping."""
        return self.content if isinstance(self.content, Mapping) else {}

    @property
    def plain(self) -> Any:
        """The value without its origins: dicts, lists and scalars."""
        if isinstance(self.content, Mapping):
            return {name: child.plain for name, child in self.content.items()}
        if isinstance(self.content, tuple):
            return [child.plain for child in self.content]
        return self.content

    def at(self, key: str) -> Node | None:
        """The node at a dotted key, items of a list being numbered from 0; None where there is none."""
        node: Node | None = self
        for part in key.split("."):
            if node is None:
                return None
            inside = dict(enumerate(node.content)) if isinstance(node.content, tuple) else None
            node = node.fields.get(part) if inside is None else inside.get(int(part)) if part.isdecimal() else None
        return node


def annotate(value: Any, origin: str) -> Node:
    """A plain value as a tree that has one origin throughout."""
    if isinstance(value, Mapping):
        return Node({str(name): annotate(child, origin) for name, child in value.items()}, origin)
    if isinstance(value, list | tuple):
        return Node(tuple(annotate(child, origin) for child in value), origin)
    return Node(value, origin)


def merge(low: Node, high: Node, *, keep_options: bool = False) -> Node:
    """Lay `high` over `low`. `keep_options` is for parts of one layer, whose `use` and `options` belong together."""
    if not isinstance(low.content, Mapping) or not isinstance(high.content, Mapping):
        return high
    fields = dict(low.content)
    chosen = high.content.get("use")
    if not keep_options and chosen and "use" in fields and fields["use"].content != chosen.content:
        fields.pop("options", None)
    for name, child in high.content.items():
        fields[name] = merge(fields[name], child, keep_options=keep_options) if name in fields else child
    return Node(fields, high.origin)


def attribute(value: Any, sources: Node | None) -> Node:
    """A plain resolved value as a tree, each part with the origin it has in `sources`, or else `default`."""
    origin = DEFAULT if sources is None else sources.origin
    if isinstance(value, Mapping):
        known = sources.fields if sources is not None else {}
        return Node({name: attribute(child, known.get(name)) for name, child in value.items()}, origin)
    if isinstance(value, list | tuple):
        items = sources.content if sources is not None and isinstance(sources.content, tuple) else ()
        return Node(tuple(attribute(child, item) for child, item in zip_longest(value, items)), origin)
    return Node(value, origin)


def is_leaf(node: Node) -> bool:
    """Whether a node is written on one line: a scalar, something empty, or a list of scalars."""
    if isinstance(node.content, tuple):
        return all(is_leaf(item) and not isinstance(item.content, Mapping) for item in node.content)
    return not isinstance(node.content, Mapping) or not node.content


def leaves(node: Node, key: str = "") -> Iterator[tuple[str, Node]]:
    """Every leaf with its dotted key, in order."""
    if is_leaf(node):
        yield key, node
        return
    inside = enumerate(node.content) if isinstance(node.content, tuple) else node.fields.items()
    for name, child in inside:
        yield from leaves(child, f"{key}.{name}" if key else str(name))
