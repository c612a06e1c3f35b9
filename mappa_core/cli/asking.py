"""Say to whom data will be sent, before it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from mappa_core.protocols import Provider


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
