"""What all tests of this part share."""

from __future__ import annotations

import ssl

import pytest


@pytest.fixture(autouse=True)
def no_trust_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every client reads the certificates of this machine, which takes longer than a test; no server here has one."""
    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", lambda *_, **__: None)
