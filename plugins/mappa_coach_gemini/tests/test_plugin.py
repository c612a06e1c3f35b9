"""What the plugin offers, and what loading it costs."""

from collections.abc import Mapping
from typing import Any

from mappa.testing import TransportPackageContract


class TestPackage(TransportPackageContract):
    plugin = "gemini"
    defaults: Mapping[str, Any] = {"location": "global"}
    heavy = ("google.genai", "google.auth", "aiohttp", "httpx2", "pydantic")
