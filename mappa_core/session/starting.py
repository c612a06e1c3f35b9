"""What is done with an opened session once the folder of its run is there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mappa_core.session.cassette import coaches_on_cassette
from mappa_core.session.opening import Session
from mappa_core.store.database import Store
from mappa_core.store.folder import RunFolder


@contextmanager
def coaches_in(folder: RunFolder, session: Session) -> Iterator[None]:
    """The coaches of a session at work: on the cassette of the run, and with a bench for the files that it keeps.

    Raises:
        RunError: what `coaches_on_cassette` raises.
    """
    bench = session.team.bench(folder.files)
    for coach in session.coaches:
        coach.equip(bench)
    with coaches_on_cassette(session.coaches, session.config.coach.cassette, folder.path):
        yield


def keep_opened(session: Session, store: Store) -> None:
    """Add an event for the providers, and one for every tool that runs programs."""
    store.event("providers", providers=session.providers)
    for tool, sandbox in session.sandboxes.items():
        store.event("sandbox", tool=tool, name=sandbox.name, detail=sandbox.detail, warnings=sandbox.warnings)
