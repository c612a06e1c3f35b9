"""Connects an opened session to the folder of its run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mappa_core.session.builder import Session
from mappa_core.session.cassette import attach_cassette
from mappa_core.store.folder import RunFolder
from mappa_core.store.writer import Store


@contextmanager
def attach_coaches(folder: RunFolder, session: Session) -> Iterator[None]:
    """Attach the coaches of a session to the run's cassette and to a program runner on the files that the run keeps.

    Raises:
        RunError: see `attach_cassette`.
    """
    bench = session.team.bench(folder.files)
    for coach in session.coaches:
        coach.set_bench(bench)
    with attach_cassette(session.coaches, session.config.coach.cassette, folder.path):
        yield


def record_session_events(session: Session, store: Store) -> None:
    """Record an event for the providers, and one for every tool that runs programs."""
    store.record_event("providers", providers=session.providers)
    for tool, sandbox in session.sandboxes.items():
        store.record_event("sandbox", tool=tool, name=sandbox.name, detail=sandbox.detail, warnings=sandbox.warnings)
