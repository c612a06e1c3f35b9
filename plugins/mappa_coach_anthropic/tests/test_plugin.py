"""What the plugin offers, and what loading it costs."""

from __future__ import annotations

import subprocess
import sys

from mappa_core.plugins import load_plugins


def test_the_plugin_is_a_transport_a_coach_and_a_policy() -> None:
    registry = load_plugins(only=["anthropic"])
    assert not registry.broken
    for kind in ("transports", "coaches", "policies"):
        assert registry.offer(kind, "anthropic").options().base_url == "https://api.anthropic.com"


def test_loading_it_imports_no_sdk() -> None:
    code = (
        "import sys, mappa_core.plugins as plugins\n"
        "assert 'anthropic' in plugins.load_plugins(only=['anthropic']).plugins\n"
        "print(sorted({'anthropic', 'aiohttp', 'httpx2', 'pydantic'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
