"""What all tests of this part share."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from mappa.sessions import Ledger
from mappa_core.calls.client import ProviderClient
from mappa_core.calls.options import CallLimits, Price


@pytest.fixture(autouse=True)
def no_trust_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every client reads the certificates of this machine, which takes longer than a test; no server here has one."""
    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", lambda *_, **__: None)


class CappedClient(ProviderClient):
    def __init__(self, transport: Any, ledger: Ledger, usd_per_million: float) -> None:
        price = Price(input=usd_per_million, output=usd_per_million)
        super().__init__(lambda: transport, name="memory", limits=CallLimits(attempts=1), price=price)
        self._ledger = ledger

    def spent(self) -> float | None:
        return self._ledger.total_usd


@pytest.fixture(scope="session")
def under_cap() -> Callable[..., Any]:
    """Make a client of a transport, whose calls cost no more than `cap` in US dollars inside the context."""

    @contextmanager
    def make(transport: Any, cap: float, *, usd_per_million: float) -> Iterator[CappedClient]:
        ledger = Ledger(cap)
        with ledger.enforce_cap():
            yield CappedClient(transport, ledger, usd_per_million)

    return make
