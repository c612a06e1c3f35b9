"""Runs that were trained with objects, which no package offers: who goes on with them needs the objects again."""

from __future__ import annotations

from pathlib import Path

from mappa.config.compose import read_stored
from mappa.notebook.objects import CellSettings
from mappa.notebook.trained_run import TrainedRun
from mappa_core import ConfigError


def run_folder(run: TrainedRun | Path | str) -> Path:
    """The folder of a run that is given as what `train` returned, or by its folder."""
    return run.folder if isinstance(run, TrainedRun) else Path(run)


def stored_plugin(run: TrainedRun | Path | str) -> str | None:
    """The name under which a run knows the objects that it was trained with; None if its plugin is a package or a file.
    Raises RunError if it is no run."""
    stored = read_stored(run_folder(run))
    return stored.plugin if stored.is_of_objects else None


def given_with_objects(given: CellSettings, run: TrainedRun | Path | str) -> CellSettings:
    """What was given, with the objects of `run` that this process still has beneath it. Raises ConfigError if the run
    needs a workflow that neither gives."""
    if isinstance(run, TrainedRun) and run.objects is not None:
        given = given.over(run.objects)
    stored = read_stored(run_folder(run))
    needs_workflow = stored.is_of_objects and stored.read().workflow.use == stored.plugin
    if needs_workflow and given.plugin.workflow is None:
        raise ConfigError(
            f"{run_folder(run)} was made of objects of a script or a notebook, which no package offers: give its "
            "workflow, tasks and coach again, as in workflow=…"
        )
    return given
