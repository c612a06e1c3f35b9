"""Where verdicts are written back to, by the word of a command line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mappa.look.tracers.address import parse_server
from mappa.look.tracers.judgements import Judgement
from mappa.look.tracers.otel_events import OtelEvents
from mappa.look.tracers.pull import open_tracer


class Receiver(Protocol):
    """What takes verdicts."""

    name: str

    def write(self, judgements: Sequence[Judgement]) -> None:
        """Write them. Raises InputError if the server does not take all of them."""


def open_receiver(place: str) -> Receiver:
    """Open what `phoenix`, `langfuse`, `otel` or an address names. The run itself never names it: a stranger who
    made it would choose where keys are sent.

    Raises:
        InputError: the address is not understood, a library is missing, or the environment lacks keys.
    """
    if place == "otel":
        return OtelEvents()
    return open_tracer(parse_server(place if "://" in place else f"{place}://"))
