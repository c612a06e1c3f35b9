"""SandboxFusion for Mappa: agents' programs run on one or more of its servers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from mappa_core import Offer, hookimpl
from mappa_sandboxfusion.options import Options

if TYPE_CHECKING:
    from mappa_core import Tool


@hookimpl
def mappa_tools() -> Iterable[Offer[Tool]]:
    yield Offer("sandboxfusion", _build, Options)


def _build(options: Options) -> Tool:
    from mappa_sandboxfusion.tool import SandboxFusionTool

    return SandboxFusionTool(options)
