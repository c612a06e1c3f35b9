"""The tools `python` and `calculator`, and checks of the sandboxes."""

from __future__ import annotations

from collections.abc import Iterable

from mappa_core import CheckArea, Offer, Tool, Toolbox, hookimpl
from mappa_sandbox.calculator import Calculator
from mappa_sandbox.options import PythonOptions


@hookimpl
def mappa_tools() -> Iterable[Offer[Tool | Toolbox]]:
    yield Offer("python", _build_python, PythonOptions)
    yield Offer("calculator", lambda options: Calculator())


@hookimpl
def mappa_checks() -> Iterable[CheckArea]:
    from mappa_sandbox import doctor_checks

    yield CheckArea("sandboxes", doctor_checks.check_sandboxes)
    yield CheckArea("tools", doctor_checks.check_python_tool)


def _build_python(options: PythonOptions) -> Tool:
    from mappa_sandbox.tool import PythonTool

    return PythonTool(options)
