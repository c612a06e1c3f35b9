"""Tasks as the source of a run gives them: to be played, and to judge again what was played.

A run records the paths of its tasks' files. They are those of the machine where it was played, and a stranger may have
written any there, so none of them is ever opened: the files of a stored task are those that the source gives today.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from mappa_core.codec import check_record
from mappa_core.config.schema import RunConfig
from mappa_core.errors import RunError, TaskError
from mappa_core.protocols import Split, TaskSource, Workflow
from mappa_core.records import Task, Trajectory
from mappa_core.tools import task_files


def load_tasks(source: TaskSource, config: RunConfig, split: Split, min_count: int = 1) -> tuple[Task, ...]:
    """Load the tasks of a split from the source of `config`. Raises TaskError if there are fewer than `min_count`, two
    with the same id, or one with a field of the wrong type or a file that cannot be used."""
    tasks, where = tuple(source.load(split) or ()), f"tasks.use={config.tasks.use}"
    if len(tasks) < min_count:
        raise TaskError(
            f"{where}: {len(tasks)} {split} tasks, at least {min_count} needed: look at tasks.options, or choose "
            "another source"
        )
    seen: set[str] = set()
    for task in tasks:
        try:
            task_files.resolve_task_files(check_record(Task, task, "load", TaskError).files)
        except TaskError as error:
            raise TaskError(f"{where}: the task {getattr(task, 'id', task)!r}: {error}") from error
        if task.id in seen:
            raise TaskError(
                f"{where}: the id {task.id!r} occurs twice among {split} tasks; results are kept by id, so each "
                "task needs its own"
            )
        seen.add(task.id)
    return tasks


class SourceTasks:
    """Finds the tasks of stored trajectories in the source that the config of their run names.

    `build` makes the source. That is done for the first task that has files, or if `workflow` grades files or reveals
    the truth itself, since a reference may then be a path, too. All other tasks are texts, and taken as recorded.
    """

    def __init__(self, config: RunConfig, workflow: Workflow, build: Callable[[], TaskSource]) -> None:
        self._config = config
        self._build = build
        self._source: TaskSource | None = None
        self._loaded: dict[Split, Mapping[str, Task]] = {}
        self._has_paths = (
            type(workflow).grade_file is not Workflow.grade_file or type(workflow).reveal is not Workflow.reveal
        )

    def renew(self, trajectory: Trajectory, split: str) -> Trajectory:
        """Return a trajectory that was stored under `split` with its task from the source. Raises as `find`."""
        return replace(trajectory, task=self.find(trajectory.task, split))

    def find(self, recorded: Task, split: str) -> Task:
        """Return the task that the source has for a recorded one.

        Raises:
            RunError: it has none with this id, or another one: with another prompt, or files of other names.
            TaskError, ConfigError, PluginError: the source cannot be built or loaded.
        """
        if not recorded.files and not self._has_paths:
            return recorded
        # An evaluation may play tasks of either split, and what is stored says only that it was one.
        first: Split = self._config.eval.split if split == "eval" else "train"
        splits: tuple[Split, ...] = (first, "train", "eval")
        found = [own for name in dict.fromkeys(splits) if (own := self._load(name).get(recorded.id)) is not None]
        for own in found:
            if own.prompt == recorded.prompt and own.files.keys() == recorded.files.keys():
                return own
        differs = "has another task of this id, with another prompt or files of other names"
        raise RunError(
            f"the task {recorded.id!r} was recorded with files, or with a truth in a file. Files of a task are opened "
            f"only as its source gives them, and tasks.use={self._config.tasks.use} "
            f"{differs if found else 'has no such task'}. Prepare the data that the run was played with, or give the "
            "source that has it (tasks.use=…, tasks.options={…})"
        )

    def _load(self, split: Split) -> Mapping[str, Task]:
        if self._source is None:
            self._source = self._build()
        if split not in self._loaded:
            tasks = load_tasks(self._source, self._config, split, min_count=0)
            self._loaded[split] = {task.id: task for task in tasks}
        return self._loaded[split]
