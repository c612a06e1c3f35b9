"""Compose a run's config, with origins: dataclass defaults <- recipe <- config files <- `key=value`."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from functools import cache, reduce
from pathlib import Path
from typing import Any, cast

import msgspec
from omegaconf import OmegaConf

from mappa.config.plugin_files import PluginFile, file_of
from mappa.config.validate import MissingValues, fields_to_keys, raise_missing, require_values, validate
from mappa.config.yaml_io import (
    COMMAND_LINE,
    CONFIG,
    MAX_CONFIG_BYTES,
    format_scalar,
    format_yaml,
    parse_origins,
    parse_overrides,
    parse_yaml,
)
from mappa_core.config.layers import DEFAULT_ORIGIN, SettingsNode, copy_origins, iter_leaves, merge, with_origin
from mappa_core.config.rules import check_options, check_values
from mappa_core.config.schema import CoachSection, EstimatorSection, PolicySection, RunConfig, ToolSection, Use
from mappa_core.defaults.objects import RECIPE as OBJECTS_RECIPE
from mappa_core.errors import ConfigError, MissingSetting, PluginError, RunError
from mappa_core.files import has_file, read_text
from mappa_core.hookspecs import Offer
from mappa_core.plugins import DEFAULT_RECIPE, OfferKind, Recipe, Registry

SECTION_KINDS: Mapping[str, OfferKind] = {
    "tasks": "tasks", "workflow": "workflows", "tools": "tools", "policies": "policies", "coach": "coaches",
    "shapers": "shapers", "estimator": "estimators", "prompts": "prompt_optimizers", "loss": "losses",
    "engine": "engines", "trackers": "trackers",
}  # fmt: skip
"""Kind of the offers that are chosen in a top-level section."""

OfferChoice = Use | ToolSection | CoachSection | EstimatorSection | PolicySection

RECIPE = "recipe"  # Top-level key of a stored config: the full name of its recipe.
PLUGIN = "plugin"  # Top-level key of a stored config: the file of its plugin, where it has no package.
RECORD = "record of the run"  # Origin of what a run changed after it wrote its config.
_FILE_HINTS: Mapping[str, str] = {
    "coach.use": "a function of a scene that is marked with @mappa.coach",
    "tasks.use": "a list `tasks`",
    "workflow.use": "a subclass of mappa_core.Workflow",
}
"""What gives a plugin that is a file the setting, by key."""
_KEY = re.compile(r"[A-Za-z_]\w*(?:\.\w+)+")  # A dotted key in a message.
EXTENDS = "extends"  # Top-level key of a recipe: the recipe of the same plugin that it extends.


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingOffer:
    """Offer that no installed package provides; its options are not checked."""

    key: str
    kind: OfferKind
    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ComposedConfig:
    """Resolved config. `settings` holds the same values as plain data with their origins."""

    config: RunConfig
    settings: SettingsNode
    plugin: str
    recipe: str
    missing_offers: tuple[MissingOffer, ...] = ()
    file: PluginFile | None = None
    """The file of the plugin, where it has no package."""

    @property
    def full_name(self) -> str:
        return f"{self.plugin}/{self.recipe}"

    @property
    def code(self) -> str | None:
        """The text of the plugin's file, for a run to keep."""
        return None if self.file is None else self.file.text

    @property
    def document(self) -> Mapping[str, Any]:
        """All settings as JSON values."""
        return cast(Mapping[str, Any], self.settings.plain)

    @property
    def origins(self) -> Mapping[str, str]:
        """Origin of each value by dotted key."""
        return {key: node.origin for key, node in iter_leaves(self.settings)}

    def tell_origins(self, message: str) -> str:
        """Add to `message` where the values of the keys that it names come from: a user may have typed none of them."""
        known = self.origins
        origins = {key: known[key] for key in _KEY.findall(message) if key in known}
        told = (f"{key}: {at if at == DEFAULT_ORIGIN else f'set by {at}'}" for key, at in origins.items())
        return f"{message} ({'; '.join(told)})" if origins else message

    @property
    def recipe_hash(self) -> str:
        """sha256 of all values except the section `run`, which sets where a run is stored and not what it does."""
        document = {key: value for key, value in self.document.items() if key != "run"}
        return hashlib.sha256(json.dumps(document, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    def to_yaml(self) -> str:
        """Return the config as YAML with the origin of every value as a comment; `restore` reads it back."""
        file = "" if self.file is None else f"{PLUGIN}: {format_scalar(asdict(self.file))}\n"
        return f"{RECIPE}: {self.full_name}\n{file}{format_yaml(self.settings)}"

    def require_installed(self) -> None:
        """Raise PluginError that lists all offers of the config that are not installed."""
        if self.missing_offers:
            missing = "\n".join(f"{offer.key}.use: {offer.reason}" for offer in self.missing_offers)
            raise PluginError(f"recipe {self.full_name} needs what is not installed:\n{missing}")


def compose(
    registry: Registry,
    plugin: str | None = None,
    recipe: str | None = None,
    config_files: Sequence[str | Path] = (),
    overrides: Sequence[str] = (),
    *,
    origin: str = COMMAND_LINE,
) -> ComposedConfig:
    """Compose the config from a recipe (by default the plugin's `tiny`), config files and `key=value` overrides, which
    come from `origin`. A stored config among the files determines the recipe if the caller names none.

    Raises ConfigError with key and origin for an invalid setting, and PluginError for an unknown plugin, recipe or
    offer.
    """
    files = [_pop_text(read_config_file(Path(path)), RECIPE) for path in config_files]
    recorded = [_pop_plugin(settings) for settings, _ in files]
    for path, (_, file) in zip(config_files, recorded, strict=True):
        _check_file(registry, file, f"{path}")
    chosen = _choose_recipe(registry, plugin, recipe, [name for _, name in files if name is not None])
    given = parse_overrides(overrides, origin)
    layers = [*_recipe_layers(registry, chosen), *(settings for settings, _ in recorded), given]
    try:
        return _resolve(registry, reduce(merge, layers, _defaults()), chosen.plugin, chosen.name)
    except MissingValues as missing:
        hints = [hint for key, hint in _FILE_HINTS.items() if key in missing.keys]
        if not hints or file_of(registry, chosen.plugin) is None:
            raise
        raise MissingSetting(f"{missing}, or in the file: {', '.join(hints)}") from missing


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredConfig:
    """The config of a run as data: nothing that it names was looked for, so options are what stands in the file, and
    nothing can be built of it. `mappa.session.trust` makes a ComposedConfig of it where the user trusts the run."""

    path: Path
    text: str
    settings: SettingsNode
    plugin: str
    recipe: str
    file: PluginFile | None = None

    @property
    def is_of_objects(self) -> bool:
        """Whether the plugin was made of objects that a process held, which are nowhere else."""
        return self.recipe == OBJECTS_RECIPE and self.file is None

    def read(self, overrides: Sequence[str] = (), recorded: Sequence[str] = ()) -> RunConfig:
        """The config as `lay_over` lays it, with options as they stand there. Raises ConfigError for a setting that
        this version does not know, is of the wrong type or has no value."""
        frame = validate(RunConfig, self.lay_over(overrides, recorded))
        require_values(frame)
        return cast(RunConfig, OmegaConf.to_object(frame))

    def lay_over(self, overrides: Sequence[str], recorded: Sequence[str] = ()) -> SettingsNode:
        """The settings over the schema's defaults, with what the run `recorded` later and with overrides, both as
        `key=value`. A choice that overrides repeat keeps its options, of which they may change some."""
        given = _drop_repeated_choices(parse_overrides(overrides), self.settings)
        return reduce(merge, (self.settings, parse_overrides(recorded, RECORD), given), _defaults())

    def resolve(
        self, registry: Registry, overrides: Sequence[str] = (), recorded: Sequence[str] = ()
    ) -> ComposedConfig:
        """Compose it as `lay_over` lays it, origins included. The recipe is not read again: a resumed run keeps its
        values. Raises as `compose`."""
        registry.plugin(self.plugin)
        tree = self.lay_over(overrides, recorded)
        origins = {f"{self.path}:{line}": origin for line, origin in parse_origins(self.text).items()}
        return _resolve(registry, tree.with_origins(origins), self.plugin, self.recipe)


def _drop_repeated_choices(given: SettingsNode, stored: SettingsNode) -> SettingsNode:
    """The settings without each `use` that is the stored one already: beside options it would discard the others."""
    if not given.fields or not stored.fields:
        return given
    fields = {
        name: _drop_repeated_choices(child, stored.fields[name]) if name in stored.fields else child
        for name, child in given.fields.items()
        if not (name == "use" and name in stored.fields and child.content == stored.fields[name].content)
    }
    return SettingsNode(fields, given.origin)


def read_stored(stored: Path) -> StoredConfig:
    """Read a config written by `ComposedConfig.to_yaml` from the file or run folder `stored`. Raises RunError where
    there is no such file, and ConfigError where it is none."""
    stored = stored if stored.is_file() or stored.name == CONFIG else stored / CONFIG
    if not has_file(stored.parent, stored.name):
        inside = sorted(stored.parent.glob(f"*/{CONFIG}"))
        known = f", it holds some: name one of them, such as {inside[-1].parent}" if inside else f": it has no {CONFIG}"
        raise RunError(f"{stored.parent} is not a run folder{known}")
    text = read_text(stored.parent, stored.name, max_bytes=MAX_CONFIG_BYTES)
    settings, name = _pop_text(parse_yaml(text, str(stored)), RECIPE)
    if name is None or "/" not in name:
        raise ConfigError(f"{stored}: not the config of a run: it has no line `{RECIPE}: plugin/recipe`")
    plugin, _, recipe = name.partition("/")
    settings, file = _pop_plugin(settings)
    return StoredConfig(path=stored, text=text, settings=settings, plugin=plugin, recipe=recipe, file=file)


def compose_installed(registry: Registry, stored: StoredConfig, overrides: Sequence[str]) -> ComposedConfig:
    """Compose what is installed under the name of a stored recipe, or the schema's defaults where it is not, with
    `overrides`. A value that a config must have and nothing installed gives is taken from `stored`. Raises as
    `compose`."""
    recipe = _find_recipe(registry, stored)
    given = parse_overrides(overrides)
    tree = reduce(merge, [*([] if recipe is None else _recipe_layers(registry, recipe)), given], _defaults())
    while True:
        try:
            return _resolve(registry, tree, stored.plugin, stored.recipe)
        except MissingValues as missing:
            filled = reduce(_copy_value, ((key, stored.settings.at(key)) for key in missing.keys), tree)
            if filled == tree:
                raise
            tree = filled


def _find_recipe(registry: Registry, stored: StoredConfig) -> Recipe | None:
    try:
        return registry.recipe(stored.plugin, stored.recipe)
    except PluginError:
        return None


def _copy_value(tree: SettingsNode, copied: tuple[str, SettingsNode | None]) -> SettingsNode:
    """Copy a node to a dotted key of `tree`; None leaves it as it is."""
    key, node = copied
    if node is None:
        return tree
    for part in reversed(key.split(".")):
        node = SettingsNode({part: node}, node.origin)
    return merge(tree, node)


def build_options(registry: Registry, kind: OfferKind, name: str, tree: SettingsNode, place: str) -> Any:
    """Build the options dataclass of an offer that is chosen outside a run's config, from `tree` at the key `place`.
    Raises as `compose`, and PluginError for a nested offer that is not installed."""
    choice, offer = Use(use=name), registry.offer(kind, name)
    for absent in _resolve_options(registry, tree, place, kind, offer, choice):
        raise PluginError(f"{absent.key}.use: {absent.reason}")
    return choice.options


def iter_choices(config: RunConfig) -> Iterator[tuple[str, OfferKind, OfferChoice]]:
    """Iterate over all offers that a config chooses, each with its dotted key and the kind of offer."""
    for section, kind in SECTION_KINDS.items():
        yield from ((key, kind, choice) for key, choice in choices_in(getattr(config, section), section))


def choices_in(value: Any, key: str) -> Iterator[tuple[str, OfferChoice]]:
    """Iterate over the choices in the settings `value` at `key`, except those in the options of another."""
    inside: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, OfferChoice) and not (isinstance(value, PolicySection) and value.kind != "api"):
        yield key, value
    if is_dataclass(value):
        names = (field.name for field in fields(value))
        inside = ((name, getattr(value, name)) for name in names if name != "options")
    elif isinstance(value, Mapping):
        inside = value.items()
    elif isinstance(value, list):
        inside = enumerate(value)
    for name, child in inside:
        yield from choices_in(child, f"{key}.{name}")


@cache
def _defaults() -> SettingsNode:
    return with_origin(OmegaConf.to_container(OmegaConf.structured(RunConfig)), DEFAULT_ORIGIN)


def read_config_file(path: Path) -> SettingsNode:
    """Read the settings of a file that the user named. Raises ConfigError."""
    return parse_yaml(_read_text(path), str(path))


def _read_text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"config file {path} cannot be read: {error}") from error


def _pop_text(node: SettingsNode, key: str) -> tuple[SettingsNode, str | None]:
    """Remove the top-level `key` from a layer; return its text."""
    if key not in node.fields:
        return node, None
    taken = node.fields[key]
    if not isinstance(taken.content, str):
        raise ConfigError(f"{key}: {taken.plain!r} is not text (set by {taken.origin})")
    return replace(node, content={name: child for name, child in node.fields.items() if name != key}), taken.content


def _pop_plugin(node: SettingsNode) -> tuple[SettingsNode, PluginFile | None]:
    """Remove the record of the plugin's file from a layer."""
    if PLUGIN not in node.fields:
        return node, None
    taken = node.fields[PLUGIN]
    try:
        file = msgspec.convert(taken.plain, PluginFile)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{PLUGIN}: {error} (set by {taken.origin})") from error
    return replace(node, content={name: child for name, child in node.fields.items() if name != PLUGIN}), file


def _check_file(registry: Registry, recorded: PluginFile | None, source: str) -> None:
    """Raise ConfigError if a config file was written for a plugin's file that the caller did not load, or for another
    text of it. Nothing is loaded because a config says so."""
    if recorded is None:
        return
    loaded = [file for file in (file_of(registry, name) for name in registry.plugins) if file is not None]
    if not loaded:
        raise ConfigError(f"{source} is of a plugin that is a file: name it, --plugin {recorded.place}")
    if recorded.sha256 not in [file.sha256 for file in loaded]:
        raise ConfigError(
            f"{source} was written for another text of {recorded.place}. To take its settings for what that is now, "
            f"remove its line `{PLUGIN}:`"
        )


def _choose_recipe(registry: Registry, plugin: str | None, recipe: str | None, stored: Sequence[str]) -> Recipe:
    if recipe is not None and "/" in recipe:
        owner, _, recipe = recipe.partition("/")
        if plugin not in (None, owner):
            raise ConfigError(f"recipe {owner}/{recipe} is not one of plugin {plugin!r}")
        plugin = owner
    for name in stored:
        owner, _, short = name.partition("/")
        if plugin not in (None, owner):
            raise ConfigError(f"a config file belongs to recipe {name}, and plugin {plugin!r} was asked for")
        plugin, recipe = owner, recipe or short
    if plugin is None:
        known = ", ".join(sorted(name for name, loaded in registry.plugins.items() if loaded.recipes))
        raise ConfigError(f"no plugin was named: --plugin NAME. Plugins with recipes: {known or 'none is installed'}.")
    recipes = tuple(registry.plugin(plugin).recipes)
    return registry.recipe(plugin, recipe or (recipes[0] if len(recipes) == 1 else DEFAULT_RECIPE))


def _recipe_layers(registry: Registry, recipe: Recipe) -> list[SettingsNode]:
    """Read a recipe and the recipes that it extends, lowest layer first."""
    layers: list[SettingsNode] = []
    seen = [recipe.name]
    while True:
        source = f"recipe {recipe.plugin}/{recipe.name}"
        settings, base = _pop_text(parse_yaml(recipe.file.read_text("utf-8"), source), EXTENDS)
        layers.insert(0, settings)
        if base is None:
            return layers
        if base in seen:
            raise ConfigError(f"{source} extends itself: {' -> '.join([*seen, base])}")
        seen.append(base)
        recipe = registry.recipe(recipe.plugin, base)


def _resolve(registry: Registry, tree: SettingsNode, plugin: str, recipe: str) -> ComposedConfig:
    tree = _inherit_default_policy(tree)
    frame = validate(RunConfig, tree)
    require_values(frame)
    config = cast(RunConfig, OmegaConf.to_object(frame))
    weights = {name: policy for name, policy in config.policies.items() if policy.kind != "api"}
    raise_missing(f"policies.{name}.model" for name, policy in weights.items() if policy.model is None)
    missing = [offer for choice in iter_choices(config) for offer in _resolve_choice(registry, tree, *choice)]
    if not weights:
        # Nothing is updated, so neither an engine nor a loss has to be installed.
        missing = [offer for offer in missing if offer.kind not in ("engines", "losses")]
    plain = fields_to_keys(config, msgspec.to_builtins(config, enc_hook=_encode))
    settings = copy_origins(plain, tree)
    # Last, on the values with the defaults of options filled in.
    check_values(settings)
    return ComposedConfig(
        config=config,
        settings=settings,
        plugin=plugin,
        recipe=recipe,
        missing_offers=tuple(missing),
        file=file_of(registry, plugin),
    )


def _inherit_default_policy(tree: SettingsNode) -> SettingsNode:
    policies = tree.fields["policies"]
    if "default" not in policies.fields:
        return tree
    default = policies.fields["default"]
    # Here and not by the schema: what a policy leaves out has the origin of the default policy's value.
    filled = {name: node if node is default else _fill_policy(default, node) for name, node in policies.fields.items()}
    return replace(tree, content={**tree.fields, "policies": replace(policies, content=filled)})


def _fill_policy(default: SettingsNode, policy: SettingsNode) -> SettingsNode:
    """Fill in what a policy leaves out. Both stand beside each other, so options of the provider that they share, such
    as its address, hold for both."""
    use = policy.fields.get("use")
    shares_provider = use is None or use.plain == getattr(default.fields.get("use"), "plain", None)
    return merge(default, policy, keep_options=shares_provider)


def _resolve_choice(
    registry: Registry, tree: SettingsNode, key: str, kind: OfferKind, choice: OfferChoice
) -> Iterator[MissingOffer]:
    """Replace the options of a choice by its offer's dataclass, nested ones too; yield what is not installed."""
    if choice.use is None:
        raise ConfigError(f"{key}.use: no value; name one of {', '.join(registry.names(kind)) or 'no installed offer'}")
    try:
        offer = registry.offer(kind, choice.use)
    except PluginError as error:
        if not registry.package_to_install(kind, choice.use):
            use = tree.at(f"{key}.use")
            raise PluginError(f"{key}.use: {error} (set by {use.origin if use else DEFAULT_ORIGIN})") from error
        yield MissingOffer(key=key, kind=kind, name=choice.use, reason=str(error))
        return
    yield from _resolve_options(registry, tree, f"{key}.options", kind, offer, choice)


def _resolve_options(
    registry: Registry, tree: SettingsNode, place: str, kind: OfferKind, offer: Offer[Any], choice: OfferChoice
) -> Iterator[MissingOffer]:
    options = validate(offer.options, tree.at(place) or SettingsNode({}, DEFAULT_ORIGIN), place)
    require_values(options, place)
    choice.options = OmegaConf.to_object(options)
    if offer.composite:
        for key, part in choices_in(choice.options, place):
            yield from _resolve_choice(registry, tree, key, kind, part)
    check_options(choice.options, tree, place)


def _encode(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"an option of type {type(value).__name__} cannot be stored; use text, numbers, lists or mappings")
