"""Checks from package metadata whether the cluster engine's libraries are installed; imports none of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from mappa_core import ConfigError
from mappa_engine.process_info import installed_version

REQUIRED_RELEASES: Mapping[str, str] = MappingProxyType(
    {"torch": "2", "transformers": "5", "peft": "0", "ray": "2.60", "deepspeed": "0.19", "vllm": "0.32.0"}
)
"""Required libraries and the prefix of their release. Of the last three the engine uses unstable interfaces."""

INSTALL_COMMAND = 'pip install "mappa-engine[cluster]"'


def library_problems(libraries: Iterable[str] = REQUIRED_RELEASES) -> dict[str, str]:
    """Describe, by library, what is missing or not of the required release."""
    problems: dict[str, str] = {}
    for library in libraries:
        needed = REQUIRED_RELEASES[library]
        installed = installed_version(library)
        if installed is None:
            problems[library] = "not installed"
        elif not f"{installed.partition('+')[0]}.".startswith(f"{needed}."):
            problems[library] = f"{installed} is installed, {needed} is needed"
    return problems


def check_installed(what: str = "engine.use=cluster", libraries: Iterable[str] = REQUIRED_RELEASES) -> None:
    """Raise ConfigError where a library that `what` needs is missing or of another release, with every reason and the
    install command."""
    if problems := library_problems(libraries):
        reasons = "; ".join(f"{library}: {reason}" for library, reason in problems.items())
        raise ConfigError(f"{what} cannot start here ({reasons}). Get what it needs with: {INSTALL_COMMAND}")
