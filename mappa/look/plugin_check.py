"""Holds an installed distribution to the contract of packages with plugins."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, EntryPoint, PackageNotFoundError, distribution, version
from inspect import getdoc

import click

from mappa.cli.formats import format_count
from mappa.cli.options import load_registry
from mappa.testing import PackageContract
from mappa_core import InputError
from mappa_core.errors import Terminated
from mappa_core.hookspecs import PLUGIN_API_VERSION
from mappa_core.plugins import Plugin

GROUP, COMMANDS = "mappa", "mappa.commands"
"""Groups of entry points: plugins, and commands."""
CORE_PACKAGE = "mappa-core"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedPackage:
    """The result of a check: the plugins that load, and the faults, each with what to do."""

    name: str
    version: str
    plugins: tuple[Plugin, ...]
    faults: tuple[str, ...]

    @property
    def line(self) -> str:
        """The result in one line, which authors may show."""
        if self.faults:
            return f"{self.name} {self.version}: {format_count(len(self.faults), 'fault')}"
        offers = sum(len(names) for plugin in self.plugins for names in plugin.offers.values())
        recipes = sum(len(plugin.recipes) for plugin in self.plugins)
        counts = ", ".join(map(format_count, (len(self.plugins), offers, recipes), ("plugin", "offer", "recipe")))
        core = f"plugin API {PLUGIN_API_VERSION} of {CORE_PACKAGE} {version(CORE_PACKAGE)}"
        return f"{self.name} {self.version}: meets {core} ({counts})"


def check_package(name: str) -> CheckedPackage:
    """Check the distribution `name`. Raises InputError if it is not installed."""
    try:
        found = distribution(name)
    except PackageNotFoundError:
        raise InputError(f"there is no distribution {name!r} here: pip install {name}") from None
    plugins = [point for point in found.entry_points if point.group == GROUP]
    faults = [*_metadata_faults(found, plugins), *_command_faults(found)]
    loaded: list[Plugin] = []
    for point in plugins:
        own = list(_plugin_faults(point.name))
        faults += own
        if not own:
            loaded.append(load_registry().plugin(point.name))
    return CheckedPackage(name=found.name, version=found.version, plugins=tuple(loaded), faults=tuple(faults))


def _metadata_faults(found: Distribution, plugins: list[EntryPoint]) -> Iterator[str]:
    if not plugins and not any(point.group == COMMANDS for point in found.entry_points):
        yield f"it has no entry point of the group `{GROUP}`: [project.entry-points.{GROUP}] names the module of hooks"
    required = (line.replace("_", "-").lower() for line in found.requires or ())
    if not any(line.startswith(CORE_PACKAGE) for line in required):
        yield f"it does not require {CORE_PACKAGE}: name the range that it was tested with in [project] dependencies"


def _command_faults(found: Distribution) -> Iterator[str]:
    for point in found.entry_points:
        if point.group == COMMANDS:
            try:
                command = point.load()
            except (KeyboardInterrupt, Terminated):
                raise
            except BaseException as error:  # noqa: BLE001  third-party code, whose errors are the faults
                yield f"the command {point.name} does not load: {type(error).__name__}: {error}"
            else:
                if not isinstance(command, click.Command):
                    yield f"the command {point.name} is {command!r}, no click command"


def _plugin_faults(plugin: str) -> Iterator[str]:
    """What the clauses of the contract of packages find, the first ones first."""

    class Held(PackageContract):
        pass

    Held.plugin = plugin
    try:
        broken = load_registry().broken.get(plugin)
    except InputError as error:
        yield str(error)
        return
    if broken is not None:
        yield f"the plugin {plugin} does not load: {broken.reason}. Import heavy or optional libraries inside `build`."
        return
    for clause in ("test_every_recipe_can_be_composed", _OPTIONS_CLAUSE):
        try:
            getattr(Held(), clause)()
        except (AssertionError, InputError, TypeError, OSError) as error:
            remedy = " ".join((getdoc(getattr(PackageContract, clause)) or "").split())
            yield f"{plugin}: {str(error).splitlines()[0]}. {remedy}"


_OPTIONS_CLAUSE = "test_every_offer_has_a_plain_name_and_options_that_can_be_written_down"
