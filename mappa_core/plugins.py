"""Find, load, check and list plugins: entry points of the group `mappa` that name a module with hooks of
`mappa_core.hookspecs`. Core's own offers use the same hooks.

A plugin that cannot be imported is recorded as broken and fails only what needs it; a misspelled hook or a name that is
offered twice raises at once.
"""

from __future__ import annotations

import difflib
import importlib
import tomllib
import traceback
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import EntryPoint, entry_points, version
from importlib.resources import files
from importlib.resources.abc import Traversable
from types import MappingProxyType
from typing import Any, Literal

import pluggy

from mappa_core import hookspecs
from mappa_core.errors import PluginError, Terminated
from mappa_core.hookspecs import PLUGIN_API_VERSION, CheckArea, Offer

OfferKind = Literal[
    "tasks", "workflows", "tools", "coaches", "transports", "policies",
    "shapers", "estimators", "prompt_optimizers", "losses", "engines", "trackers",
]  # fmt: skip
KIND_NAMES: Mapping[OfferKind, str] = MappingProxyType({
    "tasks": "source of tasks", "workflows": "workflow", "tools": "tool", "coaches": "coach",
    "transports": "transport", "policies": "policy behind an API", "shapers": "shaper", "estimators": "estimator",
    "prompt_optimizers": "optimiser of prompts", "losses": "loss", "engines": "engine", "trackers": "tracker",
})  # fmt: skip
"""Singular names by kind of offer. The hook of a kind is `mappa_<kind>`; core derives `policies` from transports."""

ENTRY_POINT_GROUP = "mappa"
CORE = "core"
CORE_PACKAGE = "mappa-core"
CORE_MODULE = "mappa_core.defaults"
DEFAULT_RECIPE = "tiny"
KINDS_WITH_HOOK = tuple(kind for kind in KIND_NAMES if hasattr(hookspecs, f"mappa_{kind}"))
HOOK_NAMES = tuple(name for name in dir(hookspecs) if name.startswith("mappa_"))


@cache
def first_party_packages(kind: OfferKind | Literal["commands", "plugins"]) -> Mapping[str, str]:
    """Packages of this project by what they offer of `kind`: recipes can name it before it is installed."""
    listed = files("mappa_core").joinpath("first_party.toml").read_text(encoding="utf-8")
    return dict(tomllib.loads(listed).get(kind, {}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """Loaded plugin. `recipes` and `offers` are keyed by short name; `package` is its distribution, or its `source`:
    the file or module that it was read from, with the hash of its text as `version`."""

    name: str
    package: str
    version: str
    offers: Mapping[OfferKind, Mapping[str, Offer[Any]]]
    recipes: Mapping[str, Traversable] = field(default_factory=dict)
    checks: tuple[CheckArea, ...] = ()
    source: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenPlugin:
    """Plugin that failed to load: the reason in one line, and the traceback as text."""

    name: str
    package: str
    version: str
    reason: str
    traceback: str

    def __str__(self) -> str:
        return f"plugin {self.name!r} ({self.package}) is broken: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Packaged recipe. Its full name is `plugin/name`."""

    plugin: str
    name: str
    file: Traversable


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    """All plugins with their offers; core is the plugin `core`."""

    plugins: Mapping[str, Plugin]
    broken: Mapping[str, BrokenPlugin]

    @property
    def versions(self) -> Mapping[str, str]:
        """Version by distribution, as recorded with a run."""
        return {plugin.package: plugin.version for plugin in self.plugins.values()}

    def names(self, kind: OfferKind) -> tuple[str, ...]:
        """Names of all offers of `kind`, sorted."""
        return tuple(sorted(name for plugin in self.plugins.values() for name in plugin.offers[kind]))

    def package_to_install(self, kind: OfferKind, name: str) -> str | None:
        """First-party package that offers `name`; None if `name` is installed or unknown."""
        return None if name in self.names(kind) else first_party_packages(kind).get(name)

    def offer(self, kind: OfferKind, name: str) -> Offer[Any]:
        """Offer `name` of `kind`. Raises PluginError with close matches and the package that may provide it."""
        for plugin in self.plugins.values():
            if name in plugin.offers[kind]:
                return plugin.offers[kind][name]
        package = self.package_to_install(kind, name)
        install = f' It comes with {package}: pip install "{package}".'
        hint = install if package else did_you_mean(name, self.names(kind))
        broken = (f" It may be offered by a plugin that did not load: {plugin}." for plugin in self.broken.values())
        raise PluginError(f"no {KIND_NAMES[kind]} is called {name!r}.{hint}{''.join(broken)}")

    def build(self, kind: OfferKind, name: str, options: object | None = None) -> Any:
        """Build the offer `name` from an instance of its options dataclass; None uses the defaults. Raises PluginError
        if it is unknown or calls exit, TypeError for other options, and what its `build` raises."""
        offer = self.offer(kind, name)
        chosen = offer.options() if options is None else options
        if not isinstance(chosen, offer.options):
            raise TypeError(f"{kind} {name!r} takes {offer.options.__name__}, not {type(chosen).__name__}")
        parts = (lambda part: self.build(kind, part.use, part.options),) if offer.composite else ()
        try:
            return offer.build(chosen, *parts)
        except Terminated:
            raise
        except SystemExit as error:
            package = next(plugin.package for plugin in self.plugins.values() if offer is plugin.offers[kind].get(name))
            raise PluginError(f"the {KIND_NAMES[kind]} {name!r} ({package}) called exit: {error!r}") from error

    def plugin(self, name: str) -> Plugin:
        """Plugin `name`. Raises PluginError if it is unknown or broken."""
        if name in self.plugins:
            return self.plugins[name]
        if name in self.broken:
            raise PluginError(f"{self.broken[name]}. `mappa plugins --traceback` shows why.")
        if package := first_party_packages("plugins").get(name):
            raise PluginError(f"the plugin {name!r} is not installed: pip install {package}")
        known = sorted((self.plugins.keys() | self.broken.keys()) - {CORE})
        raise PluginError(f"no plugin is called {name!r}.{did_you_mean(name, known)}")

    def recipe(self, plugin: str, name: str = DEFAULT_RECIPE) -> Recipe:
        """Recipe `name` of `plugin`. Raises PluginError if either is unknown."""
        recipes = self.plugin(plugin).recipes
        if name not in recipes:
            raise PluginError(f"plugin {plugin!r} has no recipe {name!r}.{did_you_mean(name, recipes)}")
        return Recipe(plugin=plugin, name=name, file=recipes[name])


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Sentence with a leading space that suggests close matches of `name`, or else lists all known names."""
    names = sorted(known)
    if close := difflib.get_close_matches(name, names):
        return f" Did you mean {' or '.join(close)}?"
    return f" There is: {', '.join(names)}." if names else " There is none."


def find_entry_points(block: Collection[str] = (), only: Collection[str] | None = None) -> tuple[EntryPoint, ...]:
    """Entry points of all plugins, sorted by name; nothing is imported. Raises PluginError if two packages use one
    name, or if `block` or `only` names an unknown plugin."""
    by_name = sort_entry_points(ENTRY_POINT_GROUP, "plugin", {CORE: CORE_PACKAGE})
    for name in (*block, *(only or ())):
        if name not in by_name:
            raise PluginError(f"no plugin is called {name!r}.{did_you_mean(name, by_name)}")
    selected = by_name.keys() if only is None else set(only)
    return tuple(point for name, point in by_name.items() if name in selected and name not in block)


def sort_entry_points(
    group: str, noun: str, taken: Mapping[str, str] = MappingProxyType({}), block: Collection[str] = ()
) -> Mapping[str, EntryPoint]:
    """Entry points of a group by name, in its order, except those of packages with a plugin in `block`; `taken` are
    packages by reserved name. Raises PluginError if two packages use one name."""
    plugins = entry_points(group=ENTRY_POINT_GROUP) if block else ()  # reads a file of every installed package
    blocked = {_package(point) for point in plugins if point.name in block}
    found: dict[str, EntryPoint] = {}
    for point in sorted(entry_points(group=group), key=lambda point: point.name):
        if point.name in found or point.name in taken:
            both = f"{taken.get(point.name) or _package(found[point.name])} and {_package(point)}"
            raise PluginError(f"two packages have a {noun} called {point.name!r}: {both}. Uninstall one of them.")
        if _package(point) not in blocked:
            found[point.name] = point
    return found


def load_plugins(
    block: Collection[str] = (), only: Collection[str] | None = None, modules: Mapping[str, object] | None = None
) -> Registry:
    """Load core's offers, every installed plugin except those in `block`, or only those in `only`, and the plugins
    `modules` of a script or a notebook: objects by name whose attributes are hooks. Raises PluginError for a name that
    is taken, and for a hook that does not exist or is not marked."""
    core = importlib.import_module(CORE_MODULE)
    plugins = {CORE: _collect(core, CORE, CORE_PACKAGE, version(CORE_PACKAGE))}
    broken: dict[str, BrokenPlugin] = {}
    for point in find_entry_points(block, only):
        try:
            plugins[point.name] = _collect(point.load(), point.name, _package(point), _version(point))
        except (PluginError, KeyboardInterrupt, Terminated):
            raise
        # Third-party code, which may also call exit: its error is shown when the plugin is needed.
        except BaseException as error:  # noqa: BLE001
            why, trace = f"{type(error).__name__}: {error}", "".join(traceback.format_exception(error))
            named = {"name": point.name, "package": _package(point), "version": _version(point)}
            broken[point.name] = BrokenPlugin(**named, reason=why, traceback=trace)
    for name, module in (modules or {}).items():
        if name in plugins:
            raise PluginError(f"there is a plugin called {name!r} already ({plugins[name].package})")
        source = getattr(module, "mappa_source", None)
        package, release = source or f"{name} (of this process)", getattr(module, "mappa_version", "-")
        plugins[name] = replace(_collect(module, name, package, release), source=source)
    plugins = {name: _add_transport_offers(plugin, core) for name, plugin in plugins.items()}
    _check_duplicates(plugins.values())
    return Registry(plugins=MappingProxyType(plugins), broken=MappingProxyType(broken))


def _collect(module: object, name: str, package: str, release: str) -> Plugin:
    """Call every hook of one module. A separate plugin manager isolates plugins from each other's exceptions."""
    api = getattr(module, "mappa_api", PLUGIN_API_VERSION)
    if api > PLUGIN_API_VERSION:
        raise ImportError(f"it needs plugin API {api} and this mappa-core has {PLUGIN_API_VERSION}; upgrade mappa-core")
    manager = pluggy.PluginManager(ENTRY_POINT_GROUP)
    manager.add_hookspecs(hookspecs)
    try:
        manager.register(module)
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        raise PluginError(f"plugin {name!r} ({package}): {error}. Hooks are {', '.join(HOOK_NAMES)}.") from error
    _check_markers(module, name, package)
    hook = manager.hook
    offered = {kind: getattr(hook, f"mappa_{kind}")() if kind in KINDS_WITH_HOOK else () for kind in KIND_NAMES}
    return Plugin(
        name=name,
        package=package,
        version=release,
        offers=MappingProxyType({kind: _index_offers(results, kind) for kind, results in offered.items()}),
        recipes=MappingProxyType({key: file for recipes in hook.mappa_recipes() for key, file in recipes.items()}),
        checks=tuple(area for areas in hook.mappa_checks() for area in areas),
    )


def _add_transport_offers(plugin: Plugin, core: Any) -> Plugin:
    """Add a coach and a policy for each transport of `plugin`, under the same name."""
    transports = plugin.offers["transports"]
    coaches = {name: core.coach_from_transport(offer) for name, offer in transports.items()}
    policies = {name: core.policy_from_transport(offer) for name, offer in transports.items()}
    if clash := sorted(coaches.keys() & plugin.offers["coaches"].keys()):
        raise PluginError(f"plugin {plugin.name!r} ({plugin.package}) offers {clash[0]!r} as coach and as transport")
    offers = {**plugin.offers, "coaches": {**plugin.offers["coaches"], **coaches}, "policies": policies}
    return replace(plugin, offers=MappingProxyType(offers))


def _index_offers(results: Iterable[Iterable[Offer[Any]]], kind: OfferKind) -> Mapping[str, Offer[Any]]:
    offers: dict[str, Offer[Any]] = {}
    for offer in (offer for result in results for offer in result):
        if not isinstance(offer, Offer):
            raise TypeError(f"mappa_{kind} gave {offer!r}, which is no Offer: a hook gives Offer(name, build, options)")
        if offer.name in offers:
            raise ValueError(f"mappa_{kind} offers {offer.name!r} twice: recipes choose by name, so rename one of them")
        offers[offer.name] = offer
    return MappingProxyType(offers)


def _check_markers(module: object, name: str, package: str) -> None:
    """Raise PluginError for a hook without its marker: pluggy would silently never call it."""
    for hook in HOOK_NAMES:
        if (function := getattr(module, hook, None)) is not None and not hasattr(function, "mappa_impl"):
            raise PluginError(f"plugin {name!r} ({package}): {hook} is not marked with @hookimpl")


def _check_duplicates(plugins: Iterable[Plugin]) -> None:
    owners: dict[tuple[OfferKind, str], Plugin] = {}
    for plugin in plugins:
        for kind, name in ((kind, name) for kind, offers in plugin.offers.items() for name in offers):
            other = owners.setdefault((kind, name), plugin)
            if other is not plugin:
                raise PluginError(
                    f"two packages offer the {KIND_NAMES[kind]} {name!r}: {other.package} and {plugin.package}. "
                    f"Uninstall one of them, or leave one out: mappa --block {plugin.name} …"
                )


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist else point.module


def _version(point: EntryPoint) -> str:
    return point.dist.version if point.dist else "unknown"
