"""Scenes of a stored run for coaches that the user brings: nothing of the run is built unless the truth is shown."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from mappa.config.compose import read_stored
from mappa.look.importing.offers import IMPORT_RECIPE
from mappa.runs import RunReader
from mappa.session.stored_runs import RecordedScenes, open_stored_scenes
from mappa.session.trust import add_own_plugin, restore_trusted
from mappa_core.plugins import Registry


def is_imported(reader: RunReader) -> bool:
    """Whether the run was imported: it has no workflow that could be built."""
    return bool(reader.settings.get("workflow.use") == IMPORT_RECIPE)


@asynccontextmanager
async def open_shown_scenes(
    registry: Registry, folder: Path, reader: RunReader, *, truth: bool | None, trust: bool
) -> AsyncIterator[RecordedScenes]:
    """Scenes of the run in `folder`.

    Args:
        truth: show the truth of all agents, or of none; None: as the run's own coach saw it.
        trust: as of `restore_trusted`, for the run's workflow, which describes the truth where it is shown.
    """
    team = reader.team
    if truth is None:
        shown = tuple(read_stored(folder).read().coach.reference_for)
    else:
        shown = tuple(team.agents) if truth else ()
    if not shown or is_imported(reader):
        yield RecordedScenes(agents=team.agents, metric=team.metric, reference_for=shown)
        return
    registry = add_own_plugin(registry, folder, trust=trust)
    config = restore_trusted(registry, folder, trust=trust).config
    async with open_stored_scenes(config, registry, reader.files) as scenes:
        yield replace(scenes, reference_for=shown)
