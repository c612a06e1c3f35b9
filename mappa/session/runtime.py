"""Connects an opened session to the folder of its run, and coaches to a cassette."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from mappa.config.compose import ComposedConfig
from mappa.rollout.team import Team
from mappa.session.builder import Session
from mappa.store.cassette import open_cassette
from mappa.store.folder import RunFolder
from mappa.store.team_record import TeamRecord
from mappa.store.writer import PROMPT_EVENT, TRANSPORT_LOST_EVENT, Store
from mappa_core.calls.api_policy import ApiPolicy
from mappa_core.calls.restarts import record_losses
from mappa_core.config.schema import CassetteSection
from mappa_core.protocols import Coach

CASSETTE_NAME = "cassette.db"


def create_folder_for(composed: ComposedConfig, *, purpose: str, name: str | None = None) -> RunFolder:
    """Create the folder of a run that plays by a config for another `purpose` than to train: it stands behind the name
    of the recipe. `name` is as of `RunFolder.create`. Raises RunError if the folder exists or the storage fails."""
    return RunFolder.create(
        Path(composed.config.run.root),
        name,
        plugin=composed.plugin,
        recipe=f"{composed.recipe}-{purpose}",
        config=composed.to_yaml(),
        code=composed.code,
    )


@contextmanager
def attach_cassette(coaches: Sequence[Coach], chosen: CassetteSection, folder: Path) -> Iterator[None]:
    """Let coaches read and write verdicts on the cassette that `coach.cassette` names: a file of its own, or
    `cassette.db` in the run's `folder`. Coaches that call no provider need none.

    Raises RunError if the file is not a cassette, is damaged, or is of a newer version.
    """
    cassette = None
    if any(coach.providers for coach in coaches):
        path = folder / CASSETTE_NAME if chosen.path is None else Path(chosen.path)
        cassette = open_cassette(chosen.mode, path)
    if cassette is None:
        yield
        return
    try:
        for coach in coaches:
            coach.use_cassette(cassette)
        yield
    finally:
        cassette.close()


def open_batches(users: Iterable[Coach | ApiPolicy], chosen: CassetteSection, folder: Path) -> None:
    """Make coaches and policies record their batches in the folder of the cassette, used or not. Raises RunError if the
    record is in use by another process or cannot be written."""
    # Beside the cassette: runs that share verdicts also share the batches that were paid for them.
    record_folder = folder if chosen.path is None else Path(chosen.path).parent
    for user in users:
        user.open_batches(record_folder)


@contextmanager
def attach_coaches(folder: RunFolder, session: Session) -> Iterator[None]:
    """Attach the coaches of a session to the run's cassette and to a bench on the files that the run keeps. Open the
    record of batches for them and for policies behind an API, and record as events what calls their providers and is
    lost. Raises RunError as `attach_cassette`."""
    team, chosen = session.team, session.config.coach.cassette
    bench = team.bench(folder.files)
    open_batches((*session.coaches, *team.api_policies.values()), chosen, folder.path)
    for coach in session.coaches:
        coach.set_bench(bench)

    def record(provider: str, reason: str) -> None:
        folder.store.record_event(TRANSPORT_LOST_EVENT, provider=provider, error=reason)

    with record_losses(record), attach_cassette(session.coaches, chosen, folder.path):
        yield


def record_session_events(session: Session, store: Store) -> None:
    """Record the team, and events for the providers, every prompt, and every tool that runs programs."""
    record_team(session.team, store)
    store.record_event("providers", providers=session.providers)
    record_prompts(session.team, store)
    for tool, sandbox in session.sandboxes.items():
        store.record_event("sandbox", tool=tool, name=sandbox.name, detail=sandbox.detail, warnings=sandbox.warnings)


def record_team(team: Team, store: Store) -> None:
    """Record who the agents are, what is reported of them and which tools they have."""
    workflow, tools = team.workflow, {name: tool.spec for name, tool in team.tools.items()}
    store.record_team(
        TeamRecord(agents=workflow.agents, metric=workflow.metric, figures=tuple(workflow.figures), tools=tools)
    )


def record_prompts(team: Team, store: Store) -> None:
    """Record an event with the text of every agent's prompt, which steps refer to by its version."""
    for agent, text in team.workflow.prompts.items():
        store.record_event(PROMPT_EVENT, agent=agent, version=team.prompt_version(agent), text=text)
