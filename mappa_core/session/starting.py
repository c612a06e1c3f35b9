"""What a run keeps of what it opened: whom it asks, and where its programs run."""

from __future__ import annotations

from mappa_core.session.opening import Session
from mappa_core.store.database import Store


def keep_opened(session: Session, store: Store) -> None:
    """Add an event for the providers, and one for every tool that runs programs."""
    store.event("providers", providers=session.providers)
    for tool, sandbox in session.sandboxes.items():
        store.event("sandbox", tool=tool, name=sandbox.name, detail=sandbox.detail, warnings=sandbox.warnings)
