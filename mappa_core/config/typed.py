"""Check plain settings against dataclasses. OmegaConf decides; what it refuses is traced to key, layer and line."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import Field, fields, is_dataclass
from functools import cache
from types import NoneType
from typing import Any, cast, get_args, get_origin, get_type_hints

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from mappa_core.config.layers import Node
from mappa_core.config.schema import KEY
from mappa_core.errors import ConfigError


def typed(schema: type, node: Node, key: str = "") -> DictConfig:
    """The settings of `node` on the defaults of dataclass `schema`; `key` is where they stand. Raises ConfigError."""
    try:
        return cast(DictConfig, OmegaConf.merge(_frame(schema), _by_field(schema, node).plain))
    except (OmegaConfBaseException, TypeError, ValueError) as error:
        reason = _find(schema, node, key) or f"{key or 'settings'}: {error} (set by {node.origin})"
        raise ConfigError(reason) from error


@cache
def _frame(schema: type) -> DictConfig:
    """The defaults of `schema`; merging copies them."""
    return cast(DictConfig, OmegaConf.structured(schema))


def require(settings: DictConfig, key: str = "") -> None:
    """Raise ConfigError where mandatory settings have no value, naming all of them."""
    missing = sorted(_join(key, name) for name in OmegaConf.missing_keys(settings))
    if missing:
        raise ConfigError(f"{', '.join(missing)}: no value; give one in a config file or as {missing[0]}=VALUE")


def _find(schema: type, node: Node, key: str) -> str | None:
    """What is wrong with `node`, in words."""
    hints = _hints(schema)
    if not isinstance(node.content, Mapping):
        names = ", ".join(hints)
        return f"{key}: {node.plain!r} stands where a section is needed, with keys {names} (set by {node.origin})"
    for name, child in node.content.items():
        here = _join(key, name)
        if name not in hints:
            return f"{here}: not a setting (set by {child.origin}).{_suggest(key, name, list(hints))}"
        for inner, item, place in _sections(hints[name], child, here):
            if problem := _find(inner, item, place):
                return problem
        if not _accepts(schema, name, child):
            return f"{here}: {child.plain!r} is not {_words(hints[name])} (set by {child.origin})"
    return None


def _accepts(schema: type, name: str, node: Node) -> bool:
    try:
        OmegaConf.merge(_frame(schema), _by_field(schema, Node({name: node}, node.origin)).plain)
    except (OmegaConfBaseException, TypeError):
        return False
    return True


def by_key(value: Any, plain: Any) -> Any:
    """`plain`, the values of a config `value`, with sections by the keys of settings in place of names of fields."""
    if is_dataclass(value):
        return {_key(field): by_key(getattr(value, field.name), plain[field.name]) for field in fields(value)}
    if isinstance(value, Mapping):
        return {name: by_key(child, plain[name]) for name, child in value.items()}
    if isinstance(value, list | tuple):
        return [by_key(child, item) for child, item in zip(value, plain, strict=True)]
    return plain


def _by_field(schema: type, node: Node) -> Node:
    """`node` with sections by the names of fields in place of the keys of settings."""
    if not isinstance(node.content, Mapping):
        return node
    hints, names = _hints(schema), {_key(field): field.name for field in fields(schema)}
    if hidden := node.content.keys() & (set(names.values()) - names.keys()):
        raise ValueError(f"{', '.join(hidden)}: not a setting")
    inside = {names.get(key, key): _inside(hints.get(key), child) for key, child in node.content.items()}
    return Node(inside, node.origin)


def _inside(hint: Any, node: Node) -> Node:
    section, content = _section(hint), node.content
    if section is None:
        return node
    if isinstance(content, tuple):
        return Node(tuple(_by_field(section, item) for item in content), node.origin)
    if get_origin(hint) is dict and isinstance(content, Mapping):
        return Node({name: _by_field(section, item) for name, item in content.items()}, node.origin)
    return _by_field(section, node)


def _sections(hint: Any, node: Node, key: str) -> Iterator[tuple[type, Node, str]]:
    """The dataclasses inside a field of type `hint`, each with its settings and its key."""
    section = _section(hint)
    if section is None:
        return
    if get_origin(hint) in (list, tuple) and isinstance(node.content, tuple):
        yield from ((section, item, f"{key}.{index}") for index, item in enumerate(node.content))
    elif get_origin(hint) is dict and isinstance(node.content, Mapping):
        yield from ((section, item, f"{key}.{name}") for name, item in node.content.items())
    elif get_origin(hint) not in (list, tuple, dict) and node.content is not None:
        yield section, node, key


def _section(hint: Any) -> type | None:
    """The dataclass inside a field of type `hint`."""
    options = [option for option in get_args(hint) or (hint,) if option is not NoneType]
    return cast(type, options[-1]) if options and is_dataclass(options[-1]) else None


def _key(field: Field[Any]) -> str:
    return cast(str, field.metadata.get(KEY, field.name))


def _hints(schema: type) -> dict[str, Any]:
    """The type of every setting, by its key."""
    hints = get_type_hints(schema)
    return {_key(field): hints[field.name] for field in fields(schema)}


def _suggest(key: str, name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known)
    if close:
        return f" Did you mean {' or '.join(_join(key, match) for match in close)}?"
    return f" Known here: {', '.join(known)}." if known else " There are no settings here."


def _words(hint: Any) -> str:
    """A type in words for a message."""
    simple = {int: "a whole number", float: "a number", bool: "true or false", str: "text", NoneType: "null"}
    if hint in simple:
        return simple[hint]
    arguments = get_args(hint)
    if get_origin(hint) is list:
        return f"a list of {_words(arguments[0]).removeprefix('a ')}s"
    if get_origin(hint) is dict:
        return f"a mapping whose values are each {_words(arguments[1])}"
    if get_origin(hint) is tuple:
        return f"a list of {len(arguments)} values: {', '.join(_words(argument) for argument in arguments)}"
    if is_dataclass(hint):
        return "a section"
    if arguments:
        return " or ".join(repr(argument) if isinstance(argument, str) else _words(argument) for argument in arguments)
    return f"a {getattr(hint, '__name__', hint)}"


def _join(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name
