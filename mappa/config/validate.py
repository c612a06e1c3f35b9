"""Validate plain settings against dataclasses with OmegaConf; errors name the key, layer and line."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, fields, is_dataclass
from functools import cache
from types import MappingProxyType, NoneType
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from mappa_core.config.layers import SettingsNode
from mappa_core.config.schema import SETTING_KEY
from mappa_core.errors import ConfigError, MissingSetting


class MissingValues(MissingSetting):
    """The settings `keys` have no value."""

    def __init__(self, keys: Sequence[str]) -> None:
        super().__init__(f"{', '.join(keys)}: no value; give one in a config file or as {keys[0]}=VALUE")
        self.keys = tuple(keys)


def validate(schema: type, node: SettingsNode, key: str = "") -> DictConfig:
    """Merge the settings of `node`, located at `key`, into the defaults of dataclass `schema`. Raises ConfigError."""
    try:
        return cast(DictConfig, OmegaConf.merge(_schema_defaults(schema), _keys_to_fields(schema, node).plain))
    except (OmegaConfBaseException, TypeError, ValueError) as error:
        # OmegaConf says neither which layer set a value nor what there is instead: the error is looked for again.
        reason = _first_error(schema, node, key) or f"{key or 'settings'}: {error} (set by {node.origin})"
        raise ConfigError(reason) from error


@cache
def _schema_defaults(schema: type) -> DictConfig:
    return cast(DictConfig, OmegaConf.structured(schema))


def require_values(settings: DictConfig, key: str = "") -> None:
    """Raise ConfigError that lists all mandatory settings without a value."""
    raise_missing(_join(key, name) for name in OmegaConf.missing_keys(settings))


def raise_missing(keys: Iterable[str]) -> None:
    """Raise ConfigError that lists the settings `keys` without a value, if there are any."""
    missing = sorted(keys)
    if missing:
        raise MissingValues(missing)


def _first_error(schema: type, node: SettingsNode, key: str) -> str | None:
    hints = field_hints(schema)
    if not isinstance(node.content, Mapping):
        names = ", ".join(hints)
        return f"{key}: {node.plain!r} stands where a section is needed, with keys {names} (set by {node.origin})"
    for name, child in node.content.items():
        here = _join(key, name)
        if name not in hints:
            return f"{here}: not a setting (set by {child.origin}).{_suggest(key, name, list(hints))}"
        for inner, item, place in _sections(hints[name], child, here):
            problem = _first_error(inner, item, place)
            if problem is not None:
                return problem
        if not _accepts(schema, name, child):
            choices = _choices(hints[name])
            if choices:
                return f"{here}: must be one of {', '.join(choices)}, not {child.plain!r} (set by {child.origin})"
            return f"{here}: {child.plain!r} is not {_describe_type(hints[name])} (set by {child.origin})"
    return None


def _accepts(schema: type, name: str, node: SettingsNode) -> bool:
    setting = SettingsNode({name: node}, node.origin)
    try:
        OmegaConf.merge(_schema_defaults(schema), _keys_to_fields(schema, setting).plain)
    except (OmegaConfBaseException, TypeError):
        return False
    return True


def fields_to_keys(value: Any, plain: Any) -> Any:
    """Rename the field names in `plain`, the plain values of a config `value`, to setting keys."""
    if is_dataclass(value):
        names = {setting_key(field): field.name for field in fields(value)}
        return {key: fields_to_keys(getattr(value, name), plain[name]) for key, name in names.items()}
    if isinstance(value, Mapping):
        return {name: fields_to_keys(child, plain[name]) for name, child in value.items()}
    if isinstance(value, list | tuple):
        return [fields_to_keys(child, item) for child, item in zip(value, plain, strict=True)]
    return plain


def _keys_to_fields(schema: type, node: SettingsNode, key: str = "") -> SettingsNode:
    if not isinstance(node.content, Mapping):
        return node
    hints, names = field_hints(schema), {setting_key(field): field.name for field in fields(schema)}
    # A field with another key, as `start` with the key `from`, is no setting under its own name.
    hidden = node.content.keys() & (set(names.values()) - names.keys())
    if hidden:
        raise ValueError(f"{', '.join(hidden)}: not a setting")
    inside = {
        names.get(name, name): map_section(hints.get(name), child, _join(key, name), _keys_to_fields)
        for name, child in node.content.items()
    }
    return SettingsNode(inside, node.origin)


def map_section(
    hint: Any, node: SettingsNode, key: str, change: Callable[[type, SettingsNode, str], SettingsNode]
) -> SettingsNode:
    """Apply `change` to the dataclasses in a field of type `hint`, with their settings and keys."""
    changed = [change(*section) for section in _sections(hint, node, key)]
    if not changed:
        return node
    if get_origin(hint) in (list, tuple):
        return SettingsNode(tuple(changed), node.origin)
    if get_origin(hint) is dict:
        return SettingsNode(dict(zip(node.fields, changed, strict=True)), node.origin)
    return changed[0]


def _sections(hint: Any, node: SettingsNode, key: str) -> Iterator[tuple[type, SettingsNode, str]]:
    """Iterate over the dataclasses in a field of type `hint`, each with its settings and key."""
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
    """Dataclass in a field of type `hint`, None if there is none."""
    options = [option for option in get_args(hint) or (hint,) if option is not NoneType]
    return cast(type, options[-1]) if options and is_dataclass(options[-1]) else None


def setting_key(field: Field[Any]) -> str:
    """Key of a field in settings."""
    return cast(str, field.metadata.get(SETTING_KEY, field.name))


@cache
def field_hints(schema: type) -> Mapping[str, Any]:
    """Type of every setting by key."""
    hints = get_type_hints(schema)
    return MappingProxyType({setting_key(field): hints[field.name] for field in fields(schema)})


def _suggest(key: str, name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known)
    if close:
        return f" Did you mean {' or '.join(_join(key, match) for match in close)}?"
    return f" Known here: {', '.join(known)}." if known else " There are no settings here."


def _choices(hint: Any) -> tuple[str, ...]:
    """Names that a Literal type, or one that may be null, allows; else none."""
    parts = [part for part in get_args(hint) if part is not NoneType]
    if get_origin(hint) is Literal:
        return tuple(str(name) for name in parts)
    if len(parts) == 1 and get_origin(parts[0]) is Literal:
        return (*_choices(parts[0]), "null")
    return ()


def _describe_type(hint: Any) -> str:
    simple = {int: "a whole number", float: "a number", bool: "true or false", str: "text", NoneType: "null"}
    if hint in simple:
        return simple[hint]
    arguments = get_args(hint)
    if get_origin(hint) is list:
        return f"a list of {_describe_type(arguments[0]).removeprefix('a ')}s"
    if get_origin(hint) is dict:
        return f"a mapping whose values are each {_describe_type(arguments[1])}"
    if get_origin(hint) is tuple:
        return f"a list of {len(arguments)} values: {', '.join(_describe_type(argument) for argument in arguments)}"
    if is_dataclass(hint):
        return "a section"
    if arguments:
        return " or ".join(map(_describe_type, arguments))
    return f"a {getattr(hint, '__name__', hint)}"


def _join(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name
