"""The config of a run: dataclass defaults <- recipe <- config files <- `key=value`, with the origin of every value."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, reduce
from pathlib import Path
from typing import Any, cast

import msgspec
from omegaconf import OmegaConf

from mappa_core.config.checks import check_values
from mappa_core.config.layers import DEFAULT, Node, annotate, attribute, leaves, merge
from mappa_core.config.schema import CoachSection, EstimatorSection, PolicySection, RunConfig, ToolSection, Use
from mappa_core.config.text import read_origins, read_words, read_yaml, write_yaml
from mappa_core.config.typed import by_key, require, typed
from mappa_core.errors import ConfigError, PluginError
from mappa_core.hookspecs import Offer
from mappa_core.plugins import DEFAULT_RECIPE, Kind, Recipe, Registry

Chosen = Use | ToolSection | CoachSection | EstimatorSection | PolicySection

RECIPE = "recipe"
"""Top-level key of a stored config: the full name of the recipe it came from."""
EXTENDS = "extends"
"""Top-level key of a recipe: the recipe of the same plugin that it changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Absent:
    """An offer that the config names and no installed package offers; its options are unchecked."""

    key: str
    kind: Kind
    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Composed:
    """A resolved config. `settings` holds the same values as plain data with their origins."""

    config: RunConfig
    settings: Node
    plugin: str
    recipe: str
    absent: tuple[Absent, ...] = ()

    @property
    def full_name(self) -> str:
        """The recipe's full name, `plugin/recipe`."""
        return f"{self.plugin}/{self.recipe}"

    @property
    def document(self) -> Mapping[str, Any]:
        """Every value as JSON values."""
        return cast(Mapping[str, Any], self.settings.plain)

    @property
    def origins(self) -> Mapping[str, str]:
        """Who set each value, by dotted key."""
        return {key: node.origin for key, node in leaves(self.settings)}

    @property
    def recipe_hash(self) -> str:
        """sha256 of every value but those of `run`, which say where a run lies and not what it does."""
        document = {key: value for key, value in self.document.items() if key != "run"}
        return hashlib.sha256(json.dumps(document, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    def yaml(self) -> str:
        """The config as YAML with the origin of every value as a comment; `restore` reads it."""
        return f"{RECIPE}: {self.full_name}\n{write_yaml(self.settings)}"

    def require_installed(self) -> None:
        """Raise PluginError where the config names offers that are not installed, naming all of them."""
        if self.absent:
            missing = "\n".join(f"{one.key}.use: {one.reason}" for one in self.absent)
            raise PluginError(f"recipe {self.full_name} needs what is not installed:\n{missing}")


def compose(
    registry: Registry,
    plugin: str | None = None,
    recipe: str | None = None,
    config_files: Sequence[str | Path] = (),
    words: Sequence[str] = (),
) -> Composed:
    """Compose the config of a recipe (the plugin's `tiny` unless named), config files and `key=value` words.

    A stored config among the files names the recipe where the caller does not. Raises ConfigError for what cannot be
    set, with its key and origin, and PluginError for a plugin, recipe or offer that nobody has heard of.
    """
    files = [_split(_read_file(Path(path)), RECIPE) for path in config_files]
    chosen = _choose(registry, plugin, recipe, [name for _, name in files if name is not None])
    layers = [*_recipe_layers(registry, chosen), *(settings for settings, _ in files), read_words(words)]
    return _resolve(registry, reduce(merge, layers, _defaults()), chosen.plugin, chosen.name)


def restore(registry: Registry, stored: Path, words: Sequence[str] = ()) -> Composed:
    """Read back what `Composed.yaml` wrote, origins included, with `key=value` words laid over it.

    The recipe itself is not read again: a run goes on with the values it began with. Raises ConfigError and
    PluginError as `compose` does.
    """
    settings, name = _split(_read_file(stored), RECIPE)
    if name is None or "/" not in name:
        raise ConfigError(f"{stored}: not the config of a run: it has no line `{RECIPE}: plugin/recipe`")
    comments = read_origins(stored.read_text("utf-8"))
    origins = {f"{stored}:{line}": origin for line, origin in comments.items()}
    plugin, _, recipe = name.partition("/")
    registry.plugin(plugin)
    layers = [_relabel(settings, origins), read_words(words)]
    return _resolve(registry, reduce(merge, layers, _defaults()), plugin, recipe)


def options_of(registry: Registry, kind: Kind, name: str, tree: Node, place: str) -> Any:
    """The options of an offer that is chosen outside a run's config, as its dataclass; they stand in `tree` at `place`.

    Raises ConfigError and PluginError as `compose` does, and PluginError for a part that is not installed.
    """
    choice = Use(use=name)
    for absent in _fill(registry, tree, place, kind, registry.offer(kind, name), choice):
        raise PluginError(f"{absent.key}.use: {absent.reason}")
    return choice.options


def choices_of(config: RunConfig) -> Iterator[tuple[str, Kind, Chosen]]:
    """Every choice of an offer that a config makes, with its dotted key and the kind of offer."""
    yield "tasks", "tasks", config.tasks
    yield "workflow", "workflows", config.workflow
    yield from ((f"tools.{name}", "tools", tool) for name, tool in config.tools.items())
    yield from (
        (f"policies.{name}", "policies", policy) for name, policy in config.policies.items() if policy.kind == "api"
    )
    yield "coach", "coaches", config.coach
    yield from ((f"coach.by_agent.{agent}", "coaches", use) for agent, use in config.coach.by_agent.items())
    if config.coach.hindsight is not None:
        yield "coach.hindsight", "coaches", config.coach.hindsight
    yield from ((f"shapers.{index}", "shapers", use) for index, use in enumerate(config.shapers))
    yield "estimator", "estimators", config.estimator
    yield from ((f"estimator.by_agent.{agent}", "estimators", use) for agent, use in config.estimator.by_agent.items())
    yield "loss", "losses", config.loss
    yield "engine", "engines", config.engine
    yield from ((f"trackers.{index}", "trackers", use) for index, use in enumerate(config.trackers))


@cache
def _defaults() -> Node:
    return annotate(OmegaConf.to_container(OmegaConf.structured(RunConfig)), DEFAULT)


def _read_file(path: Path) -> Node:
    try:
        return read_yaml(path.read_text("utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"config file {path} cannot be read: {error}") from error


def _split(node: Node, key: str) -> tuple[Node, str | None]:
    """Take the text at top-level `key` out of a layer."""
    if key not in node.fields:
        return node, None
    taken = node.fields[key]
    if not isinstance(taken.content, str):
        raise ConfigError(f"{key}: {taken.plain!r} is not text (set by {taken.origin})")
    return replace(node, content={name: child for name, child in node.fields.items() if name != key}), taken.content


def _choose(registry: Registry, plugin: str | None, recipe: str | None, noted: Sequence[str]) -> Recipe:
    """The recipe to begin with. `noted` are full names that config files give."""
    if recipe is not None and "/" in recipe:
        owner, _, recipe = recipe.partition("/")
        if plugin not in (None, owner):
            raise ConfigError(f"recipe {owner}/{recipe} is not one of plugin {plugin!r}")
        plugin = owner
    for name in noted:
        owner, _, short = name.partition("/")
        if plugin not in (None, owner):
            raise ConfigError(f"a config file belongs to recipe {name}, and plugin {plugin!r} was asked for")
        plugin, recipe = owner, recipe or short
    if plugin is None:
        known = ", ".join(sorted({name.partition("/")[0] for name in registry.recipes}))
        raise ConfigError(f"no plugin was named: --plugin NAME. Plugins with recipes: {known or 'none is installed'}.")
    return registry.recipe(plugin, recipe or DEFAULT_RECIPE)


def _recipe_layers(registry: Registry, recipe: Recipe) -> list[Node]:
    """A recipe and what it extends, lowest first."""
    layers: list[Node] = []
    seen = [recipe.name]
    while True:
        source = f"recipe {recipe.full_name}"
        settings, base = _split(read_yaml(recipe.file.read_text("utf-8"), source), EXTENDS)
        layers.insert(0, settings)
        if base is None:
            return layers
        if base in seen:
            raise ConfigError(f"{source} extends itself: {' -> '.join([*seen, base])}")
        seen.append(base)
        recipe = registry.recipe(recipe.plugin, base)


def _resolve(registry: Registry, tree: Node, plugin: str, recipe: str) -> Composed:
    tree = _start_policies_from_default(tree)
    frame = typed(RunConfig, tree)
    require(frame)
    config = cast(RunConfig, OmegaConf.to_object(frame))
    _require_models(config)
    absent = tuple(one for choice in choices_of(config) for one in _fill_options(registry, tree, *choice))
    settings = attribute(by_key(config, msgspec.to_builtins(config, enc_hook=_plain)), tree)
    check_values(settings)
    return Composed(config=config, settings=settings, plugin=plugin, recipe=recipe, absent=absent)


def _require_models(config: RunConfig) -> None:
    """Raise ConfigError where policies have no model, naming all of them; behind an API the model is an option."""
    missing = [name for name, policy in config.policies.items() if policy.kind != "api" and policy.model is None]
    if missing:
        keys = [f"policies.{name}.model" for name in sorted(missing)]
        raise ConfigError(f"{', '.join(keys)}: no value; give one in a config file or as {keys[0]}=VALUE")


def _start_policies_from_default(tree: Node) -> Node:
    policies = tree.fields["policies"]
    if "default" not in policies.fields:
        return tree
    default = policies.fields["default"]
    filled = {name: node if node is default else merge(default, node) for name, node in policies.fields.items()}
    return replace(tree, content={**tree.fields, "policies": replace(policies, content=filled)})


def _fill_options(registry: Registry, tree: Node, key: str, kind: Kind, choice: Chosen) -> Iterator[Absent]:
    """Turn the options of one choice, and of the choices in them, into the dataclasses of their offers, in place; what
    is not installed is handed back."""
    if choice.use is None:
        raise ConfigError(f"{key}.use: no value; name one of {', '.join(registry.names(kind)) or 'no installed offer'}")
    try:
        offer = registry.offer(kind, choice.use)
    except PluginError as error:
        if not registry.absent_package(kind, choice.use):
            use = tree.at(f"{key}.use")
            raise PluginError(f"{key}.use: {error} (set by {use.origin if use else DEFAULT})") from error
        yield Absent(key=key, kind=kind, name=choice.use, reason=str(error))
        return
    yield from _fill(registry, tree, f"{key}.options", kind, offer, choice)


def _fill(
    registry: Registry, tree: Node, place: str, kind: Kind, offer: Offer[Any], choice: Chosen
) -> Iterator[Absent]:
    options = typed(offer.options, tree.at(place) or Node({}, DEFAULT), place)
    require(options, place)
    choice.options = OmegaConf.to_object(options)
    if offer.composite:
        for name, part in _parts(choice.options):
            yield from _fill_options(registry, tree, f"{place}.{name}", kind, part)


def _parts(options: Any) -> Iterator[tuple[str, Use]]:
    """The choices in the options of a composite offer, each with its key there."""
    for field in fields(options):
        value = getattr(options, field.name)
        if isinstance(value, Use):
            yield field.name, value
        elif isinstance(value, list):
            yield from ((f"{field.name}.{place}", one) for place, one in enumerate(value) if isinstance(one, Use))


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"an option of type {type(value).__name__} cannot be stored; use text, numbers, lists or mappings")


def _relabel(node: Node, origins: Mapping[str, str]) -> Node:
    origin = origins.get(node.origin, node.origin)
    if isinstance(node.content, Mapping):
        return Node({name: _relabel(child, origins) for name, child in node.content.items()}, origin)
    if isinstance(node.content, tuple):
        return Node(tuple(_relabel(child, origins) for child in node.content), origin)
    return Node(node.content, origin)
