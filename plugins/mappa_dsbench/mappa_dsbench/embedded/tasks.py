"""The task source `dsbench-embedded`: tables that need no download, cut once on each machine and kept.

Tables and answers lie in folders of their own. Each task's files have the digest of their content in their place, and
are hashed whenever they are loaded: what another version made, or what was changed, is made anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mappa_core import ConfigError, Split, Task, TaskError
from mappa_dsbench.asking import question
from mappa_dsbench.embedded.catalogue import Embedded, tasks
from mappa_dsbench.embedded.facts import Facts, digest_of, facts
from mappa_dsbench.options import EmbeddedOptions
from mappa_dsbench.places import cache_folder, write
from mappa_dsbench.roles import TASK_FILES
from mappa_dsbench.table import meta_of


class EmbeddedTasks:
    """Implements TaskSource. Training and held-out tasks are cut from different data sets."""

    def __init__(self, options: EmbeddedOptions) -> None:
        self._folder = cache_folder(options.folder)
        self._chosen: dict[Split, Sequence[Embedded]] = {
            "train": _spread(tasks("training"), options.train, "tasks.options.train"),
            "eval": _spread(tasks("held_out"), options.eval, "tasks.options.eval"),
        }

    def load(self, split: Split) -> Sequence[Task]:
        return tuple(self._task(one) for one in self._chosen[split])

    def _task(self, embedded: Embedded) -> Task:
        known = facts()[embedded.name]
        place = f"{embedded.name}-{known.digest[:16]}"
        shown = [self._folder / "tables" / place / name for name in TASK_FILES]
        answers = self._folder / "answers" / place / "answers.csv"
        if not _intact([*shown, answers], known):
            _make(embedded, [*shown, answers], known)
        return Task(
            id=embedded.name,
            prompt=question(known.table.problem, test_rows=known.test_rows),
            reference=str(answers),
            stratum=embedded.kind,
            cluster=embedded.dataset,
            files={name: str(path) for name, path in zip(TASK_FILES, shown, strict=True)},
            meta=meta_of(known.table),
        )


def _spread(found: Sequence[Embedded], count: int | None, option: str) -> Sequence[Embedded]:
    if count is None:
        return found
    if not 1 <= count <= len(found):
        raise ConfigError(f"{option} is a number from 1 to {len(found)}, not {count}")
    return [found[at * len(found) // count] for at in range(count)]


def _intact(paths: Sequence[Path], known: Facts) -> bool:
    try:
        return digest_of(*(path.read_bytes() for path in paths)) == known.digest
    except OSError:
        return False


def _make(embedded: Embedded, paths: Sequence[Path], known: Facts) -> None:
    """Write the files. TaskError: other ones come out than everywhere else."""
    cut = embedded.cut()
    made = (cut.train, cut.test, cut.sample, cut.answer)
    if digest_of(*made) != known.digest:
        raise TaskError(
            f"task {embedded.name!r} comes out otherwise than it should: the installed pandas reads or writes tables "
            "in a way that was not tried. Install one in a version that mappa-dsbench was tested with"
        )
    for path, data in zip(paths, made, strict=True):
        write(path, data, secret=path == paths[-1])
