"""Check plain settings against dataclasses. OmegaConf decides; what it refuses is traced to key, layer and line."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from types import NoneType
from typing import Any, cast, get_args, get_origin, get_type_hints

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from mappa_core.config.layers import Node
from mappa_core.errors import ConfigError


def typed(schema: type, node: Node, key: str = "") -> DictConfig:
    """The settings of `node` on the defaults of dataclass `schema`; `key` is where they stand. Raises ConfigError."""
    try:
        return cast(DictConfig, OmegaConf.merge(OmegaConf.structured(schema), node.plain))
    except (OmegaConfBaseException, TypeError, ValueError) as error:
        reason = _find(schema, node, key) or f"{key or 'settings'}: {error} (set by {node.origin})"
        raise ConfigError(reason) from error


def require(settings: DictConfig, key: str = "") -> None:
    """Raise ConfigError where mandatory settings have no value, naming all of them."""
    missing = sorted(_join(key, name) for name in OmegaConf.missing_keys(settings))
    if missing:
        raise ConfigError(f"{', '.join(missing)}: no value; give one in a config file or as {missing[0]}=VALUE")


def _find(schema: type, node: Node, key: str) -> str | None:
    """What is wrong with `node`, in words."""
    if not isinstance(node.content, Mapping):
        names = ", ".join(field.name for field in fields(schema))
        return f"{key}: {node.plain!r} stands where a section is needed, with keys {names} (set by {node.origin})"
    hints = get_type_hints(schema)
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
        OmegaConf.merge(OmegaConf.structured(schema), {name: node.plain})
    except (OmegaConfBaseException, TypeError):
        return False
    return True


def _sections(hint: Any, node: Node, key: str) -> Iterator[tuple[type, Node, str]]:
    """The dataclasses inside a field of type `hint`, each with its settings and its key."""
    options = [option for option in get_args(hint) or (hint,) if option is not NoneType]
    inner = options[-1]
    if not is_dataclass(inner):
        return
    section = cast(type, inner)
    if get_origin(hint) in (list, tuple) and isinstance(node.content, tuple):
        yield from ((section, item, f"{key}.{index}") for index, item in enumerate(node.content))
    elif get_origin(hint) is dict and isinstance(node.content, Mapping):
        yield from ((section, item, f"{key}.{name}") for name, item in node.content.items())
    elif get_origin(hint) not in (list, tuple, dict) and node.content is not None:
        yield section, node, key


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
