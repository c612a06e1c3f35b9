"""Say to whom data will be sent and where programs will run, before they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from mappa_core.protocols import Provider
    from mappa_core.records import Sandbox


def announce(console: Console, providers: Sequence[Provider]) -> None:
    """A line per provider; nothing where nobody outside is asked."""
    for provider in providers:
        price = "" if provider.priced else "; the price of its tokens is unknown"
        console.print(
            f"what agents see and write is sent to {provider.name} ({provider.model}) at {provider.host}{price}",
            style="yellow",
            soft_wrap=True,
            highlight=False,
        )


def announce_sandboxes(console: Console, sandboxes: Mapping[str, Sandbox], *, quiet: bool = False) -> None:
    """A line per tool that runs programs, and one per warning; `quiet`: the warnings alone."""
    for tool, sandbox in sandboxes.items():
        if not quiet:
            detail = f" ({sandbox.detail})" if sandbox.detail else ""
            where = f"programs of the tool {tool} run in {sandbox.name}{detail}"
            console.print(where, soft_wrap=True, highlight=False, markup=False)
        for warning in sandbox.warnings:
            text = f"programs of the tool {tool}: {warning}"
            console.print(text, style="yellow", soft_wrap=True, highlight=False, markup=False)
