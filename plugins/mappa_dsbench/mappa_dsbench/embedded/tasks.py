"""The task source `dsbench-embedded`: tables that need no download, made once on each machine and cached.

Tables and answers lie in separate folders. The path of a task's files holds the digest of their content, and they are
hashed whenever they are loaded: files of another version, or changed ones, are made again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mappa_core import ConfigError, Split, Task, TaskError
from mappa_dsbench.cache_paths import resolve_cache_folder, write_atomically
from mappa_dsbench.embedded.catalogue import EmbeddedTask, tasks_of_split
from mappa_dsbench.embedded.facts import TaskFacts, digest_files, load_facts
from mappa_dsbench.options import EmbeddedOptions
from mappa_dsbench.roles import TASK_FILES
from mappa_dsbench.table import table_to_meta
from mappa_dsbench.task_prompt import describe_task


class EmbeddedTasks:
    """Implements TaskSource. Training and held-out tasks come from different data sets."""

    def __init__(self, options: EmbeddedOptions) -> None:
        self._folder = resolve_cache_folder(options.folder)
        self._chosen: dict[Split, Sequence[EmbeddedTask]] = {
            "train": _pick_evenly(tasks_of_split("training"), options.train, "tasks.options.train"),
            "eval": _pick_evenly(tasks_of_split("held_out"), options.eval, "tasks.options.eval"),
        }

    def load(self, split: Split) -> Sequence[Task]:
        return tuple(self._task(one) for one in self._chosen[split])

    def _task(self, embedded: EmbeddedTask) -> Task:
        known = load_facts()[embedded.name]
        place = f"{embedded.name}-{known.digest[:16]}"
        shown = [self._folder / "tables" / place / name for name in TASK_FILES]
        answers = self._folder / "answers" / place / "answers.csv"
        if not _is_intact([*shown, answers], known):
            _write_files(embedded, [*shown, answers], known)
        return Task(
            id=embedded.name,
            prompt=describe_task(known.table.problem, test_rows=known.test_rows),
            reference=str(answers),
            stratum=embedded.kind,
            cluster=embedded.dataset,
            files={name: str(path) for name, path in zip(TASK_FILES, shown, strict=True)},
            meta=table_to_meta(known.table),
        )


def _pick_evenly(tasks: Sequence[EmbeddedTask], count: int | None, option: str) -> Sequence[EmbeddedTask]:
    if count is None:
        return tasks
    if not 1 <= count <= len(tasks):
        raise ConfigError(f"{option} is a number from 1 to {len(tasks)}, not {count}")
    return [tasks[at * len(tasks) // count] for at in range(count)]


def _is_intact(paths: Sequence[Path], known: TaskFacts) -> bool:
    try:
        return digest_files(*(path.read_bytes() for path in paths)) == known.digest
    except OSError:
        return False


def _write_files(embedded: EmbeddedTask, paths: Sequence[Path], known: TaskFacts) -> None:
    """Make and write the files. TaskError: they differ from the stored digest."""
    made = embedded.make_files()
    files = (made.train, made.test, made.sample, made.answer)
    if digest_files(*files) != known.digest:
        raise TaskError(
            f"task {embedded.name!r} comes out otherwise than it should: the installed pandas reads or writes tables "
            "in a way that was not tried. Install one in a version that mappa-dsbench was tested with"
        )
    for path, data in zip(paths, files, strict=True):
        write_atomically(path, data, secret=path == paths[-1])
