"""YAML 1.2 with the file and line of every value, and `key=value` overrides; `no`, `on`, `007` and dates are text."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, cast

import yaml

from mappa_core.config.layers import Content, SettingsNode, is_leaf, merge, with_origin
from mappa_core.errors import ConfigError

CONFIG = "config.yaml"  # Name of the config file in a run folder.
MAX_CONFIG_BYTES = 4 << 20
COMMAND_LINE = "command line"
INTERPOLATION = "${"
MAX_DEPTH, MAX_VALUES = 64, 100_000
_TOO_LARGE = f"settings nest at most {MAX_DEPTH} deep and hold at most {MAX_VALUES} values, those of aliases included"
_COMMENT, _COMMENT_COLUMN = "  # ", 64
_TAG = "tag:yaml.org,2002:"
_UTF16 = ("utf-16", "surrogatepass")  # Joins the pair of escapes by which JSON writes a character above U+FFFF.
_BREAK = re.compile("[\n\r\x85\u2028\u2029]")
_FLOAT = re.compile(r"^(?:[-+]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?|[-+]?\.inf|\.nan)$", re.I)
_PLAIN = (
    ("bool", re.compile(r"^(?:true|false)$", re.I), list("tTfF")),
    ("null", re.compile(r"^(?:null|~|)$", re.I), ["~", "n", "N", ""]),
    ("int", re.compile(r"^[-+]?(?:0|[1-9]\d*)$"), list("-+0123456789")),
    ("float", re.compile(r"^(?!0\d)" + _FLOAT.pattern[1:], re.I), list("-+.0123456789")),
)


class _Loader(yaml.SafeLoader):
    values = 0
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  PyYAML keeps its table of plain scalars here


class _Dumper(yaml.SafeDumper):
    """Dumper that quotes text which YAML 1.1 or 1.2 would read as another type, and writes all text on one line."""


def _quote_breaks(dumper: _Dumper, text: str) -> yaml.Node:
    return dumper.represent_scalar(f"{_TAG}str", text, style='"' if _BREAK.search(text) else None)


_Dumper.add_representer(str, _quote_breaks)
_Loader.add_constructor(f"{_TAG}str", lambda loader, node: str(node.value).encode(*_UTF16).decode(*_UTF16))
for _name, _pattern, _first in _PLAIN:
    _Loader.add_implicit_resolver(_TAG + _name, _pattern, _first)
    _Dumper.add_implicit_resolver(_TAG + _name, _pattern, _first)


def parse_yaml(text: str, source: str) -> SettingsNode:
    """Parse a mapping of settings; origins are `source:line`. Raises ConfigError with file and line."""
    node = _parse(text, source)
    if node.content is None:
        return SettingsNode({}, source)
    if not isinstance(node.content, Mapping):
        raise ConfigError(f"{node.origin}: settings are a mapping, for example `train: {{iterations: 3}}`")
    return node


def parse_overrides(overrides: Sequence[str], origin: str = COMMAND_LINE) -> SettingsNode:
    """Parse `key=value` overrides, whose values are YAML. Later overrides win over earlier ones."""
    tree = SettingsNode({}, origin)
    for override in overrides:
        key, equals, text = override.partition("=")
        parts = key.split(".")
        if not equals or not all(parts):
            raise ConfigError(f"{override!r} on the {origin}: write key=value, for example train.iterations=3")
        node = with_origin(_parse(text, f"{override!r} on the {origin}").plain, origin)
        for part in reversed(parts):
            node = SettingsNode({part: node}, origin)
        tree = merge(tree, node, keep_options=True)
    return tree


def format_yaml(settings: SettingsNode) -> str:
    """Format a tree as YAML, one value per line with its origin as a comment, which `parse_origins` reads back."""
    lines = list(_lines(settings))
    width = min(_COMMENT_COLUMN, max((len(text) for text, origin in lines if origin), default=0))
    return "".join(f"{text:<{width}}{_COMMENT}{origin}\n" if origin else f"{text}\n" for text, origin in lines)


def parse_origins(text: str) -> Mapping[int, str]:
    """Parse the origins in the output of `format_yaml`, by line number from 1."""
    lines = enumerate(text.split("\n"), start=1)
    return {number: line.rpartition(_COMMENT)[2] for number, line in lines if _COMMENT in line}


def format_scalar(value: Any) -> str:
    """Format a leaf as one line of YAML."""
    text: str = yaml.dump(value, Dumper=_Dumper, default_flow_style=True, width=math.inf, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...")


# Keys are the same in every config, and PyYAML takes long to write them.
_format_name = lru_cache(maxsize=4096)(format_scalar)


def _lines(node: SettingsNode, indent: str = "") -> Iterator[tuple[str, str | None]]:
    """Format a mapping or a list as lines, each with its origin if it holds a value."""
    if isinstance(node.content, tuple):
        for item in node.content:
            inner = [(format_scalar(item.plain), item.origin)] if is_leaf(item) else list(_lines(item, indent + "  "))
            (text, origin), *rest = inner
            yield f"{indent}- {text.removeprefix(indent + '  ')}", origin
            yield from rest
        return
    for name, child in node.fields.items():
        if is_leaf(child):
            yield f"{indent}{_format_name(name)}: {format_scalar(child.plain)}", child.origin
        else:
            yield f"{indent}{_format_name(name)}:", None
            yield from _lines(child, indent + "  ")


# A command reads the same recipes and configs at several places, and PyYAML takes long to read them.
@lru_cache(maxsize=16)
def _parse(text: str, source: str) -> SettingsNode:
    try:
        loader = _Loader(text)
    except yaml.reader.ReaderError as error:
        number = text.count("\n", 0, error.position) + 1
        raise ConfigError(f"{source}:{number}: not valid YAML: the character {chr(error.character)!r}") from error
    try:
        root = loader.get_single_node()
        return SettingsNode(None, source) if root is None else _node(loader, root, source, root.start_mark.line, 0)
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None) or loader
        problem = _TOO_LARGE if isinstance(error, RecursionError) else getattr(error, "problem", error)
        raise ConfigError(f"{source}:{mark.line + 1}: not valid YAML: {problem}") from error
    finally:
        loader.dispose()


def _node(loader: _Loader, raw: yaml.Node, source: str, line: int, depth: int) -> SettingsNode:
    origin = f"{source}:{line + 1}"
    loader.values += 1
    if depth > MAX_DEPTH or loader.values > MAX_VALUES:
        raise ConfigError(f"{origin}: {_TOO_LARGE}")
    if isinstance(raw, yaml.SequenceNode):
        items = (_node(loader, item, source, item.start_mark.line, depth + 1) for item in raw.value)
        return SettingsNode(tuple(items), origin)
    if isinstance(raw, yaml.MappingNode):
        return SettingsNode(_fields(loader, raw, source, depth + 1), origin)
    value = loader.construct_object(raw)
    if isinstance(value, str) and INTERPOLATION in value:
        raise ConfigError(
            f"{origin}: {value!r}: settings are written out, {INTERPOLATION}…}} is not replaced. "
            "A secret is given by the name of its environment variable."
        )
    return SettingsNode(cast(Content, value), origin)


def _fields(loader: _Loader, raw: yaml.MappingNode, source: str, depth: int) -> Mapping[str, SettingsNode]:
    fields: dict[str, SettingsNode] = {}
    for key, item in raw.value:
        name, line = str(loader.construct_object(key)), key.start_mark.line
        if name in fields:
            raise ConfigError(f"{source}:{line + 1}: {name!r} is set twice, first at {fields[name].origin}")
        fields[name] = _node(loader, item, source, line, depth)
    return fields
