"""Makes a run of the plays that a source has."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from mappa.look.importing.add_plays import KEEPS_NOTE, ImportKeeps, LabelJoin, record_plays
from mappa.look.importing.formats import FORMATS
from mappa.look.importing.import_result import ImportResult, count_agents, count_entries, find_unused_keys
from mappa.look.importing.imported_config import CORE, build_config, models_by_agent, write_config
from mappa.look.importing.log_mapping import LogMapping
from mappa.look.importing.offers import IMPORT_RECIPE
from mappa.look.importing.play_sources import NewPlays, NoNotes, PlaySource
from mappa.look.importing.read_logs import check_agents, check_texts
from mappa.store.folder import RunFolder
from mappa_core import InputError, RunError
from mappa_core.files import storage_errors
from mappa_core.plugins import Registry
from mappa_core.tools.owned_folder import OwnedFolder


class NoPlaysError(InputError):
    """There is no action in a log, which may come yet."""


def create_run(
    registry: Registry, source: PlaySource, run: Path, mapping: LogMapping, *, labels: LabelJoin | None = None
) -> ImportResult:
    """Make a run of what a source has, which keeps `mapping` as how it was read. Raises as `import_logs`."""
    if os.path.lexists(run):
        raise RunError(f"{run} exists already, and is no run: choose another --name")
    found = source.read_new(NoNotes())
    chosen, logs = found.format, [play.log for play in found.plays]
    if chosen is None or not any(log.acts for log in logs):
        raise NoPlaysError(_say_no_action(source.name, found))
    check_agents(logs, mapping.agents)
    if FORMATS[chosen].entries == "messages":
        check_texts(logs, source.name)
    briefs = {**dict.fromkeys(count_agents(logs), ""), **mapping.agents}
    config = build_config(run, briefs, models_by_agent(logs), origin=source.name)
    with storage_errors(run):
        run.parent.mkdir(parents=True, exist_ok=True)
        with closing(OwnedFolder(".import-", run.parent)) as aside:
            with RunFolder.create(aside.path, run.name, plugin=CORE, recipe=IMPORT_RECIPE, config=config) as folder:
                folder.store.set_note(KEEPS_NOTE, ImportKeeps(format=chosen, mapping=mapping))
                write_config(registry, folder, config)
                made = record_plays(registry, source, found, folder, labels or LabelJoin(), chosen)
            folder.path.rename(run)
    unused = tuple(find_unused_keys(logs, mapping))
    return replace(made, folder=run, is_new=True, problems=(*unused, *made.problems))


def _say_no_action(names: str, found: NewPlays) -> str:
    if found.format is None:
        return f"{names}: there is no entry in it" + "".join(f"; {one}" for one in found.unfinished)
    left_out = count_entries([play.log for play in found.plays], "").left_out
    why = ", ".join(f"{count:,} {one}" for one, count in left_out.items())
    return (
        f"{names}: read as {found.format}, no entry in it is an action of a model{f': {why}' if why else ''}; another "
        "format is chosen with --format"
    )
