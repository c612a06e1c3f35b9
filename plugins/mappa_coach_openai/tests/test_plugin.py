"""What the plugin offers, and what loading it costs."""

from collections.abc import Mapping
from typing import Any

from mappa.testing import TransportPackageContract


class TestPackage(TransportPackageContract):
    plugin = "openai"
    defaults: Mapping[str, Any] = {"base_url": "https://api.openai.com/v1"}
    heavy = ("openai", "aiohttp", "httpx2", "pydantic")
