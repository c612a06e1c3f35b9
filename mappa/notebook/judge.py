"""`mappa.judge`: the recorded actions of a run, judged by a coach."""

from __future__ import annotations

from pathlib import Path

from mappa.cli.announce import announce_providers
from mappa.cli.console import Console
from mappa.look.cli.verdict_tables import check_answered
from mappa.look.judge import JudgedRun, judge_run
from mappa.notebook.objects import CoachLike, TasksLike, WorkflowLike, read_settings
from mappa.notebook.progress import open_verdict_bar
from mappa.notebook.short_errors import with_short_errors
from mappa.notebook.stored_objects import given_with_objects, run_folder, stored_plugin
from mappa.notebook.trained_run import TrainedRun
from mappa.session.trust import add_own_plugin, restore_trusted
from mappa.store.folder import CONFIG
from mappa.training.run import run_to_end
from mappa_core import Split


@with_short_errors
def judge(
    run: TrainedRun | Path | str,
    *,
    coach: CoachLike,
    workflow: WorkflowLike | None = None,
    tasks: TasksLike | None = None,
    split: Split = "train",
    iteration: int | None = None,
    limit: int | None = None,
    progress: bool = True,
    trust: bool = False,
) -> JudgedRun:
    """Judge the recorded actions of a run as `mappa judge` does; trains nothing.

    The verdicts are added to the run beside its own, in phase `again`. Where the run learned from verdicts, the result
    says how the advantages would have changed.

    Args:
        run: what `train` returned, or the folder of a run.
        coach: as of `train`; with options `{"use": "evidence", "options": {…}}`.
        workflow: that of a run that was trained with one of a script or a notebook, as is `tasks`; needless for what
            `train` returned.
        iteration: judge the rollouts of this iteration only, counted from 0.
        limit: trajectories at most, the first ones.
        progress: False shows nothing but who is sent data.
        trust: build what a run of somebody else names.

    Raises:
        InputError: the folder is no run or holds no such rollouts, or the coach cannot be built; as on the command
            line.
        GuardStop: more verdicts failed than `coach.max_missing`; those that did not are in the run.
    """
    folder = run_folder(run)
    given = read_settings(workflow=workflow, tasks=tasks, coach=coach, name=stored_plugin(run))
    given = given_with_objects(given, run)
    registry = given.load_plugins(own_recipe=stored_plugin(run) is not None)
    registry = add_own_plugin(registry, folder / CONFIG, trust=trust)
    composed = restore_trusted(registry, folder, given.words, trust=trust)
    with open_verdict_bar(progress) as bar:
        judged = run_to_end(
            judge_run(
                composed,
                registry,
                folder,
                split=split,
                iteration=iteration,
                limit=limit,
                on_providers=lambda providers: announce_providers(Console(stderr=True), providers),
                on_start=bar.start,
                on_verdict=bar.advance,
            )
        )
    check_answered([judged.counts], composed.config.coach.max_missing)
    return judged
