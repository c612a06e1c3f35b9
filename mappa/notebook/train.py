"""`mappa.train`: a training of objects or names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

from mappa.config.compose import compose
from mappa.notebook.objects import (
    CellSettings,
    CoachLike,
    Section,
    Sections,
    ShaperLike,
    TasksLike,
    ToolLike,
    WorkflowLike,
    has_objects,
    no_verdict,
    read_settings,
)
from mappa.notebook.progress import open_progress
from mappa.notebook.short_errors import with_short_errors
from mappa.notebook.stored_objects import given_with_objects, run_folder, stored_plugin
from mappa.notebook.trained_run import TrainedRun
from mappa.training.listener import Listener
from mappa.training.run import Run
from mappa_core import ConfigError, GuardStop
from mappa_core.defaults.objects import RECIPE, ObjectPlugin

ORIGIN = "mappa.train"
"""Origin of settings that a call gives."""
REQUIRED = {
    "tasks": "tasks: a list of rows with `prompt` and `answer`, or lists by split, tasks={'train': …, 'eval': …}",
    "policies": "a model: model=… is that of all agents, and policies={'writer': {'model': …}} that of one",
}
"""Sections that a workflow of one's own cannot do without, and what they are."""


@with_short_errors
def train(
    recipe: str | None = None,
    *,
    workflow: WorkflowLike | None = None,
    tasks: TasksLike | None = None,
    coach: CoachLike | None = None,
    tools: Sequence[ToolLike] | Section | None = None,
    shapers: Sequence[ShaperLike] | None = None,
    model: str | Path | None = None,
    resume: TrainedRun | Path | str | None = None,
    progress: bool | Listener = True,
    trust: bool = False,
    **settings: Unpack[Sections],
) -> TrainedRun:
    """Train a team as `mappa train` does, into a run folder of the same kind, and wait for its end.

    Every keyword is a section of a recipe, and an object may stand wherever a recipe has a name: `coach=judge`, or with
    what else the section holds `coach={"use": judge, "reference_for": ["writer"]}`. It works in a notebook, in a script
    and within a running event loop.

    Args:
        recipe: `plugin/recipe` that all else is laid over; None: the defaults of the settings, for a workflow of one's
            own.
        workflow: a subclass of Workflow, an object of one, or the name of an offer.
        tasks: a list of Task, or of rows with `prompt` and `answer`, as mappings, a data frame or a data set; such
            lists by split, `{"train": …, "eval": …}`; a function of a split; a file; or the name of an offer. One list
            alone is trained on and evaluated on.
        coach: a function of a Scene that returns points (0-10), alone or with a reason, a Verdict, or None to abstain;
            a Coach; or the name of an offer. Without one a workflow of one's own learns from its outcomes alone.
        tools: functions, objects or names, which agents call by their names.
        shapers: functions, objects or names, applied in order to the points of a trajectory; `scale` if none are given.
        model: of all policies that name none: a Hugging Face id, a folder, or `package:NAME/PATH`.
        resume: a run to go on with, whose own settings hold where none are given. A run that was trained with objects
            needs these again, unless it is what `train` returned.
        progress: False shows nothing but who is sent data; a Listener of one's own is shown all that happens.
        trust: build what a run of somebody else names that is resumed.
        settings: the other sections, as in `seed=1, train={"iterations": 20}, sampling={"max_tokens": 64}`.

    Raises:
        InputError: before anything is written: a setting, an object or a task cannot be used. As on the command line.
        GuardStop: a guard stopped the run, which can be resumed.
        RunError: the storage failed, as on a full disk; the run can be resumed.
        KeyboardInterrupt: the run was interrupted; its message says how to go on.
    """
    if resume is not None and recipe is not None:
        raise ConfigError(f"{recipe}: a run that is resumed goes on with its own recipe; leave the name out")
    if resume is None and recipe is None and coach is None:
        # No verdict has a weight, and the outcome is every action's reward.
        coach, shapers = {"use": no_verdict, "reward": {"live": 0}}, shapers or ["outcome"]
    given = read_settings(
        workflow=workflow,
        tasks=tasks,
        coach=coach,
        tools=tools,
        shapers=shapers,
        model=model,
        settings=settings,
        name=None if resume is None else stored_plugin(resume),
    )
    if resume is None:
        return _train(_compose_run(given, recipe), given.plugin, progress)
    given = given_with_objects(given, resume)
    return _train(_resume_run(given, resume, trust=trust), given.plugin, progress)


def _compose_run(given: CellSettings, recipe: str | None) -> Run:
    """A new run of a recipe or, without one, of the objects that were given."""
    registry = given.load_plugins(own_recipe=recipe is None)
    composed = compose(registry, recipe=recipe or _own_recipe(given), overrides=given.words, origin=ORIGIN)
    return Run(composed, registry)


def _resume_run(given: CellSettings, resume: TrainedRun | Path | str, *, trust: bool) -> Run:
    registry = given.load_plugins(own_recipe=stored_plugin(resume) is not None)
    return Run.resume(run_folder(resume), *given.words, registry=registry, trust=trust)


def _train(run: Run, plugin: ObjectPlugin, progress: bool | Listener) -> TrainedRun:
    try:
        with open_progress(progress, run.composed.config.train.iterations) as listener:
            trained = run.train(listener)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_how_to_go_on(run, plugin)) from None
    except GuardStop as stop:
        stop.add_note(_how_to_go_on(run, plugin))
        raise
    return TrainedRun(trained.folder, trained.summary, plugin)


def _how_to_go_on(run: Run, plugin: ObjectPlugin) -> str:
    if run.folder is None:
        return "nothing was written yet"
    objects = ", and the same objects" if has_objects(plugin) else ""
    return f"nothing is lost; go on with mappa.train(resume={str(run.folder)!r}){objects}"


def _own_recipe(given: CellSettings) -> str:
    """The recipe of the objects that were given. Raises ConfigError for what no default can stand for."""
    if "workflow" not in given.sections:
        raise ConfigError(
            'name a recipe, as in mappa.train("mathchat/tiny"), or give a workflow of your own: mappa.train(workflow=…)'
        )
    for key, meaning in REQUIRED.items():
        if key not in given.sections:
            raise ConfigError(f"a workflow without a recipe needs {meaning}")
    return f"{given.plugin.name}/{RECIPE}"
