"""What the plugin offers, and what loading it costs."""

from collections.abc import Mapping
from typing import Any

from mappa.testing import TransportPackageContract


class TestPackage(TransportPackageContract):
    plugin = "anthropic"
    defaults: Mapping[str, Any] = {"base_url": "https://api.anthropic.com"}
    heavy = ("anthropic", "aiohttp", "httpx2", "pydantic")
