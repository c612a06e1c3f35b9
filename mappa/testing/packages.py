"""A contract for plugin packages: installed, loading, with valid recipes and offers."""

from __future__ import annotations

import dataclasses
import json
import re
from contextlib import suppress

from mappa.config.compose import compose
from mappa_core.errors import MissingSetting
from mappa_core.plugins import Plugin, Registry
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
