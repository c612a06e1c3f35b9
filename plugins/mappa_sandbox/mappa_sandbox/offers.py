"""The tool `python`."""

from __future__ import annotations

from collections.abc import Iterable

from mappa_core import Offer, Tool, Toolbox, hookimpl
from mappa_sandbox.options import PythonOptions
from mappa_sandbox.tool import PythonTool


@hookimpl
def mappa_tools() -> Iterable[Offer[Tool | Toolbox]]:
    yield Offer("python", PythonTool, PythonOptions)
