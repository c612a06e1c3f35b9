"""Imports logs as a run folder, which can be observed, judged, viewed and reported like any other: a new one, or the
one that is there."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence
from dataclasses import fields
from hashlib import sha256
from pathlib import Path

from mappa.look.importing.add_plays import KEEPS_NOTE, ImportKeeps, LabelJoin, add_plays
from mappa.look.importing.create_run import create_run
from mappa.look.importing.import_result import ImportResult
from mappa.look.importing.label_files import LabelFile
from mappa.look.importing.log_mapping import Format, LogMapping
from mappa.look.importing.play_sources import LogFiles
from mappa.session.trust import restore_trusted
from mappa.store.folder import RunFolder, is_run_folder
from mappa_core import RunError
from mappa_core.plugins import Registry
from mappa_core.redaction import clean_name

MAX_NAME = 40
"""Characters of the name of a log in that of its run."""


def import_logs(
    registry: Registry,
    paths: Sequence[Path],
    mapping: LogMapping,
    *,
    root: Path,
    name: str | None = None,
    file_format: Format | None = None,
    label_files: Sequence[LabelFile] = (),
    trust: bool = False,
) -> ImportResult:
    """Import the logs at `paths` (files, folders, patterns of names) as one run in `root`, or add what is new in them
    to the run that is there. What was read once is not read again; a play that went on takes the place of what was
    there of it and of the verdicts on that. A new run is there when it is whole, and what is added to one is added as
    a whole, also if the process is killed.

    Args:
        mapping: the options of the import. A run that is there keeps its own: these are the same, or the defaults.
        name: of the run; None derives it from the paths, so that the same ones find it again.
        file_format: None finds the format from the first object.
        label_files: files of labels on plays that are new; the mapping's keys of labels are then about their lines.
        trust: add to a run of somebody else.

    Raises:
        InputError: a file cannot be read, or an object in it is invalid; the message names file, line and key. Nothing
            is written then. NoPlaysError if a run that is not there yet would have no action.
        RunError: the run is none that was imported, or was so with other options, or is in use; or the storage failed.
        UntrustedRun: somebody else made the run.
    """
    own = mapping.without_labels() if label_files else mapping
    run = root / (name_run(paths) if name is None else name)
    if not is_run_folder(run):
        return create_run(
            registry,
            LogFiles(paths=paths, mapping=own, file_format=file_format),
            run,
            own,
            labels=LabelJoin(files=label_files, mapping=mapping),
        )
    restore_trusted(registry, run, trust=trust)
    with RunFolder.open(run) as folder:
        keeps = _read_keeps(folder, own, file_format)
        # An option may name keys of labels in their files alone, which the run does not keep.
        source = LogFiles(paths=paths, mapping=keeps.mapping, file_format=keeps.format, is_awaited=True)
        return add_plays(registry, source, folder, labels=LabelJoin(files=label_files, mapping=mapping))


def name_run(paths: Sequence[Path]) -> str:
    """Name the run of logs by where they lie, so that the same paths have the same one, and so has a pattern that
    matches more files later. Several paths are named by the folder that they share."""
    places = [_fixed_part(path) for path in paths]
    place = places[0] if len(places) == 1 else Path(os.path.commonpath(places))
    plain = re.sub(r"[^\w-]+", "-", clean_name(place.name.partition(".")[0]))[:MAX_NAME].strip("-_")
    return f"{plain or 'logs'}-{sha256(os.fsencode(place)).hexdigest()[:6]}"


def _fixed_part(path: Path) -> Path:
    """The absolute path; of a pattern that of the folder below which it matches."""
    whole = path.absolute()
    if whole.exists() or not glob.has_magic(str(whole)):
        return whole
    return next(parent for parent in whole.parents if not glob.has_magic(str(parent)))


def _read_keeps(folder: RunFolder, mapping: LogMapping, file_format: Format | None) -> ImportKeeps:
    """How the run was imported. Raises RunError if it was not, or otherwise than is asked for now."""
    keeps = folder.store.note(KEEPS_NOTE, ImportKeeps)
    if keeps is None:
        raise RunError(f"{folder.path} was not imported from a log: choose another --name")
    asked = {"format": file_format or keeps.format} | {one.name: getattr(mapping, one.name) for one in fields(mapping)}
    kept = {"format": keeps.format} | {one.name: getattr(keeps.mapping, one.name) for one in fields(mapping)}
    other = [name for name, value in asked.items() if value != kept[name]]
    if other and (mapping != LogMapping() or "format" in other):
        names = ", ".join(f"{name} ({kept[name]!r})" for name in other)
        raise RunError(
            f"{folder.path} was imported with other options, which it keeps: {names}. Leave them out to add to it, or "
            "choose another --name"
        )
    return keeps
