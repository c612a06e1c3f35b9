"""A contract for plugin packages: installed, loading, with valid recipes and offers."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

from mappa.config.compose import compose
from mappa_core.errors import MissingSetting
from mappa_core.plugins import OfferKind, Plugin, Registry
from mappa_core.plugins import load_plugins as load_plugins


class PackageContract:
    """Subclass it and set `plugin`, the name in `[project.entry-points.mappa]`."""

    plugin: str

    def test_it_is_installed_and_loads(self) -> None:
        """Install the package (`pip install -e .`), and import heavy or optional libraries inside `build`."""
        self._loaded()

    def test_every_recipe_can_be_composed(self) -> None:
        """Each YAML file of `mappa_recipes` has known keys, types and offers; the message names key and line. It may
        leave a value to its user."""
        registry, plugin = self._loaded()
        for name in plugin.recipes:
            with suppress(MissingSetting):
                compose(registry, self.plugin, name)

    def test_every_offer_has_a_plain_name_and_options_that_can_be_written_down(self) -> None:
        """An offer's name is lower case; its options are a dataclass with YAML defaults, each with a docstring."""
        _, plugin = self._loaded()
        for kind, offers in plugin.offers.items():
            for name, offer in offers.items():
                assert re.fullmatch(r"[a-z][a-z0-9_.-]*", name), f"{kind}: {name!r} is no name in lower case"
                assert dataclasses.is_dataclass(offer.options), f"{kind} {name}: options are no dataclass"
                for option in dataclasses.fields(offer.options):
                    if option.default is not dataclasses.MISSING:
                        json.dumps(option.default)

    def _loaded(self) -> tuple[Registry, Plugin]:
        registry = load_plugins()
        broken = registry.broken.get(self.plugin)
        assert broken is None, f"the plugin {self.plugin} does not load: {broken.traceback if broken else ''}"
        return registry, registry.plugin(self.plugin)


class TransportPackageContract(PackageContract):
    """For packages that offer one transport. Set also `defaults` (of some of its options) and `heavy` (modules that
    loading must not import)."""

    defaults: Mapping[str, Any]
    heavy: Collection[str]

    def test_it_offers_a_transport_a_coach_and_a_policy(self) -> None:
        """Name the transport as the plugin is named: coach and policy get that name, too."""
        registry = load_plugins(only=[self.plugin])
        kinds: tuple[OfferKind, ...] = ("transports", "coaches", "policies")
        for options in (registry.offer(kind, self.plugin).options() for kind in kinds):
            assert {name: getattr(options, name) for name in self.defaults} == self.defaults

    def test_loading_it_imports_no_sdk(self) -> None:
        """Import an SDK inside `build`: every command of `mappa` loads every plugin."""
        code = (
            "import sys, mappa_core.plugins as plugins\n"
            f"assert {self.plugin!r} in plugins.load_plugins(only=[{self.plugin!r}]).plugins\n"
            f"print(sorted({set(self.heavy)!r} & set(sys.modules)))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout == "[]\n"
