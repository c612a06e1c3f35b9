"""Find, load, check and list plugins. The result is a value: nothing is registered anywhere else.

A plugin is one entry point of the group `mappa`, naming a module that implements hooks of `mappa_core.hookspecs`.
Core's own offers come through the same hooks. A plugin that cannot be imported is remembered as broken, with its
reason, and stops only what needs it; a misspelled hook and a name that is offered twice stop everything.
"""

from __future__ import annotations

import difflib
import importlib
import traceback
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import EntryPoint, entry_points, version
from importlib.resources.abc import Traversable
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import pluggy

from mappa_core import hookspecs
from mappa_core.errors import PluginError
from mappa_core.hookspecs import API, Offer

if TYPE_CHECKING:
    import click

Kind = Literal[
    "tasks",
    "workflows",
    "tools",
    "coaches",
    "transports",
    "policies",
    "shapers",
    "estimators",
    "losses",
    "engines",
    "trackers",
]
NOUNS: Mapping[Kind, str] = MappingProxyType(
    {
        "tasks": "source of tasks",
        "workflows": "workflow",
        "tools": "tool",
        "coaches": "coach",
        "transports": "transport",
        "policies": "policy behind an API",
        "shapers": "shaper",
        "estimators": "estimator",
        "losses": "loss",
        "engines": "engine",
        "trackers": "tracker",
    }
)
"""Every kind of offer, with the word for one of it. The hook of a kind is `mappa_<kind>`; policies behind an API have
none: core makes one of every transport."""

GROUP = "mappa"
CORE = "core"
CORE_PACKAGE = "mappa-core"
CORE_OFFERS = "mappa_core.defaults"
DEFAULT_RECIPE = "tiny"
HOOKED = tuple(kind for kind in NOUNS if hasattr(hookspecs, f"mappa_{kind}"))
HOOKS = tuple(name for name in dir(hookspecs) if name.startswith("mappa_"))

PACKAGE_OF: Mapping[tuple[Kind, str], str] = MappingProxyType(
    {
        ("coaches", "gemini"): "mappa-coach-gemini",
        ("coaches", "openai"): "mappa-coach-openai",
        ("coaches", "anthropic"): "mappa-coach-anthropic",
        ("transports", "gemini"): "mappa-coach-gemini",
        ("transports", "openai"): "mappa-coach-openai",
        ("transports", "anthropic"): "mappa-coach-anthropic",
        ("policies", "gemini"): "mappa-coach-gemini",
        ("policies", "openai"): "mappa-coach-openai",
        ("policies", "anthropic"): "mappa-coach-anthropic",
        ("tools", "sandboxfusion"): "mappa-sandboxfusion",
        ("trackers", "tensorboard"): "mappa-trackers[tensorboard]",
        ("trackers", "wandb"): "mappa-trackers[wandb]",
        ("trackers", "mlflow"): "mappa-trackers[mlflow]",
        ("trackers", "otel"): "mappa-trackers[otel]",
    }
)
"""Offers of the project's own packages that may be absent: recipes can name them before they are installed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """A plugin that loaded. `recipes` and `offers` are by short name; `package` is its distribution."""

    name: str
    package: str
    version: str
    offers: Mapping[Kind, Mapping[str, Offer[Any]]]
    recipes: Mapping[str, Traversable] = field(default_factory=dict)
    commands: tuple[click.Command, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """A plugin that did not load: why in one line, and the traceback as text."""

    name: str
    package: str
    version: str
    reason: str
    traceback: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A packaged recipe. Its full name is `plugin/name`."""

    plugin: str
    name: str
    file: Traversable

    @property
    def full_name(self) -> str:
        return f"{self.plugin}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    """All that is offered, and by whom; core is the plugin `core`."""

    plugins: Mapping[str, Plugin]
    broken: Mapping[str, Broken]

    @property
    def versions(self) -> Mapping[str, str]:
        """Version by distribution, for the record of a run."""
        return {plugin.package: plugin.version for plugin in self.plugins.values()}

    @property
    def recipes(self) -> tuple[str, ...]:
        """Full names of all recipes, sorted."""
        return tuple(sorted(f"{plugin.name}/{name}" for plugin in self.plugins.values() for name in plugin.recipes))

    def names(self, kind: Kind) -> tuple[str, ...]:
        """Names of all offers of `kind`, sorted."""
        return tuple(sorted(name for plugin in self.plugins.values() for name in plugin.offers[kind]))

    def absent_package(self, kind: Kind, name: str) -> str | None:
        """The package that is known to offer `name` where nothing installed does; None: installed, or unheard of."""
        return None if name in self.names(kind) else PACKAGE_OF.get((kind, name))

    def offer(self, kind: Kind, name: str) -> Offer[Any]:
        """The offer `name` of `kind`. Raises PluginError with close matches and where it could come from."""
        for plugin in self.plugins.values():
            if name in plugin.offers[kind]:
                return plugin.offers[kind][name]
        raise PluginError(self._unknown_offer(kind, name))

    def build(self, kind: Kind, name: str, options: object | None = None) -> Any:
        """Build the offer `name` from an instance of its options dataclass; None takes the defaults."""
        offer = self.offer(kind, name)
        chosen = offer.options() if options is None else options
        if not isinstance(chosen, offer.options):
            raise TypeError(f"{kind} {name!r} takes {offer.options.__name__}, not {type(chosen).__name__}")
        if offer.composite:
            return offer.build(chosen, lambda part: self.build(kind, part.use, part.options))
        return offer.build(chosen)

    def plugin(self, name: str) -> Plugin:
        """The plugin `name`. Raises PluginError where it is unknown or broken."""
        if name in self.plugins:
            return self.plugins[name]
        if name in self.broken:
            raise PluginError(f"{_account(self.broken[name])}. `mappa plugins` shows the traceback.")
        known = sorted(self.plugins.keys() | self.broken.keys() - {CORE})
        raise PluginError(f"no plugin is called {name!r}.{choices(name, known)}")

    def recipe(self, plugin: str, name: str = DEFAULT_RECIPE) -> Recipe:
        """The recipe `name` of `plugin`. Raises PluginError where either is unknown."""
        recipes = self.plugin(plugin).recipes
        if name not in recipes:
            raise PluginError(f"plugin {plugin!r} has no recipe {name!r}.{choices(name, recipes)}")
        return Recipe(plugin=plugin, name=name, file=recipes[name])

    def _unknown_offer(self, kind: Kind, name: str) -> str:
        text = f"no {NOUNS[kind]} is called {name!r}."
        package = self.absent_package(kind, name)
        text += f' It comes with {package}: pip install "{package}".' if package else choices(name, self.names(kind))
        for broken in self.broken.values():
            text += f" It may be offered by a plugin that did not load: {_account(broken)}."
        return text


def choices(name: str, known: Iterable[str]) -> str:
    """Close matches of `name` as a sentence with a leading space, or else all that is known."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names)
    if close:
        return f" Did you mean {' or '.join(close)}?"
    return f" There is: {', '.join(names)}." if names else " There is none."


def installed(block: Collection[str] = (), only: Collection[str] | None = None) -> tuple[EntryPoint, ...]:
    """Entry points of all plugins, sorted by name; nothing is imported.

    Raises PluginError where two packages take one name, and where `block` or `only` names none of them.
    """
    found: dict[str, EntryPoint] = {}
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        if point.name in found or point.name == CORE:
            other = _package(found[point.name]) if point.name in found else CORE_PACKAGE
            both = f"{other} and {_package(point)}"
            raise PluginError(f"two packages have a plugin called {point.name!r}: {both}. Uninstall one of them.")
        found[point.name] = point
    for name in (*block, *(only or ())):
        if name not in found:
            raise PluginError(f"no plugin is called {name!r}.{choices(name, found)}")
    wanted = found.keys() if only is None else set(only)
    return tuple(point for name, point in found.items() if name in wanted and name not in block)


def load(
    block: Collection[str] = (), only: Collection[str] | None = None, modules: Mapping[str, object] | None = None
) -> Registry:
    """Load core's offers and every installed plugin but those in `block` (or those in `only` and no others).

    `modules` are further plugins by name, as objects whose attributes are hooks: those of a script or a notebook, which
    no package installs.
    """
    core = importlib.import_module(CORE_OFFERS)
    plugins = {CORE: _collect(core, CORE, CORE_PACKAGE, version(CORE_PACKAGE))}
    broken: dict[str, Broken] = {}
    for point in installed(block, only):
        try:
            plugins[point.name] = _collect(point.load(), point.name, _package(point), _version(point))
        except PluginError:
            raise
        except Exception as error:  # noqa: BLE001  the boundary to foreign code: what it raises is shown where it is needed
            broken[point.name] = Broken(
                name=point.name,
                package=_package(point),
                version=_version(point),
                reason=f"{type(error).__name__}: {error}",
                traceback="".join(traceback.format_exception(error)),
            )
    for name, module in (modules or {}).items():
        if name in plugins:
            raise PluginError(f"there is a plugin called {name!r} already ({plugins[name].package})")
        plugins[name] = _collect(module, name, package=f"{name} (of this process)", release="-")
    plugins = {name: _with_derived(plugin, core) for name, plugin in plugins.items()}
    _refuse_duplicates(plugins.values())
    return Registry(plugins=MappingProxyType(plugins), broken=MappingProxyType(broken))


def _collect(module: object, name: str, package: str, release: str) -> Plugin:
    """Call every hook of one module. A manager of its own keeps an exception in one plugin from touching another."""
    api = getattr(module, "mappa_api", API)
    if api > API:
        raise ImportError(f"it needs plugin API {api} and this mappa-core has {API}; upgrade mappa-core")
    manager = pluggy.PluginManager(GROUP)
    manager.add_hookspecs(hookspecs)
    try:
        manager.register(module)
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        raise PluginError(f"plugin {name!r} ({package}): {error}. Hooks are {', '.join(HOOKS)}.") from error
    _refuse_unmarked(module, name, package)
    hook = manager.hook
    return Plugin(
        name=name,
        package=package,
        version=release,
        offers=MappingProxyType(
            {kind: _offers(getattr(hook, f"mappa_{kind}")() if kind in HOOKED else (), kind) for kind in NOUNS}
        ),
        recipes=MappingProxyType({key: file for recipes in hook.mappa_recipes() for key, file in recipes.items()}),
        commands=tuple(command for commands in hook.mappa_commands() for command in commands),
    )


def _with_derived(plugin: Plugin, core: Any) -> Plugin:
    """`plugin` with what core makes of each of its transports: a coach and a policy of that name."""
    transports = plugin.offers["transports"]
    if not transports:
        return plugin
    coaches = {name: core.coach_of(offer) for name, offer in transports.items()}
    policies = {name: core.policy_of(offer) for name, offer in transports.items()}
    if clash := sorted(coaches.keys() & plugin.offers["coaches"].keys()):
        raise PluginError(f"plugin {plugin.name!r} ({plugin.package}) offers {clash[0]!r} as coach and as transport")
    offers = {**plugin.offers, "coaches": {**plugin.offers["coaches"], **coaches}, "policies": policies}
    return replace(plugin, offers=MappingProxyType(offers))


def _offers(results: Iterable[Iterable[Offer[Any]]], kind: Kind) -> Mapping[str, Offer[Any]]:
    offers: dict[str, Offer[Any]] = {}
    for offer in (offer for result in results for offer in result):
        if not isinstance(offer, Offer):
            raise TypeError(f"mappa_{kind} gave {offer!r}, which is no Offer")
        if offer.name in offers:
            raise ValueError(f"mappa_{kind} offers {offer.name!r} twice")
        offers[offer.name] = offer
    return MappingProxyType(offers)


def _refuse_unmarked(module: object, name: str, package: str) -> None:
    """A hook without its marker would never be called, and nobody would be told."""
    for hook in HOOKS:
        function = getattr(module, hook, None)
        if function is not None and not hasattr(function, "mappa_impl"):
            raise PluginError(f"plugin {name!r} ({package}): {hook} is not marked with @hookimpl")


def _refuse_duplicates(plugins: Iterable[Plugin]) -> None:
    owners: dict[tuple[Kind, str], Plugin] = {}
    for plugin in plugins:
        for kind, name in ((kind, name) for kind, offers in plugin.offers.items() for name in offers):
            other = owners.setdefault((kind, name), plugin)
            if other is not plugin:
                raise PluginError(
                    f"two packages offer the {NOUNS[kind]} {name!r}: {other.package} and {plugin.package}. "
                    f"Uninstall one of them, or leave one out: mappa --block {plugin.name} …"
                )


def _account(broken: Broken) -> str:
    return f"plugin {broken.name!r} ({broken.package}) is broken: {broken.reason}"


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist else point.module


def _version(point: EntryPoint) -> str:
    return point.dist.version if point.dist else "unknown"
