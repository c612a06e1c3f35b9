"""Whether the libraries of the cluster engine are installed, told from metadata alone: nothing is imported."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from mappa_core.engine.process import release
from mappa_core.errors import ConfigError

LIBRARIES: Mapping[str, str] = MappingProxyType(
    {"torch": "2", "transformers": "5", "peft": "0", "ray": "2.60", "deepspeed": "0.19", "vllm": "0.32.0"}
)
"""What the engine needs, with how its release begins. Of the last three it uses what their authors may change."""

INSTALL = 'pip install "mappa-core[cluster]"'


def faults(libraries: Iterable[str] = LIBRARIES) -> dict[str, str]:
    """What is wrong, by library: it is missing, or is not the release that is needed."""
    found: dict[str, str] = {}
    for library in libraries:
        needed = LIBRARIES[library]
        there = release(library)
        if there is None:
            found[library] = "not installed"
        elif not f"{there.partition('+')[0]}.".startswith(f"{needed}."):
            found[library] = f"{there} is installed, {needed} is needed"
    return found


def check_installed(what: str = "engine.use=cluster", libraries: Iterable[str] = LIBRARIES) -> None:
    """Raise ConfigError where `what`, which needs these libraries, could not start, with every reason and the command
    that mends it."""
    if found := faults(libraries):
        reasons = "; ".join(f"{library}: {reason}" for library, reason in found.items())
        raise ConfigError(f"{what} cannot start here ({reasons}). Get what it needs with: {INSTALL}")
