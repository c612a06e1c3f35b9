"""A contract for task sources: the same tasks every time, each with a unique id."""

from __future__ import annotations

import asyncio
import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from mappa_core.protocols import AnswerGrader, Split, TaskSource
from mappa_core.records import Task

SPLITS: Sequence[Split] = get_args(Split)
GRADED_TASKS = 3
"""Tasks of each split whose grading is tried."""


class TaskSourceContract:
    """Subclass it and implement `source`. Set `splits` if the source does not have all of them."""

    splits: Sequence[Split] = SPLITS

    def source(self) -> TaskSource:
        """Create a source."""
        raise NotImplementedError

    def test_every_split_has_tasks(self) -> None:
        """`load` returns tasks for `train` and for `eval`. Keep some out of training, to detect memorization."""
        for split in self.splits:
            tasks = self.source().load(split)
            assert len(tasks) > 0, f"there are no tasks in the split {split}"
            assert all(isinstance(task, Task) and task.id and task.prompt for task in tasks), "an id and a prompt each"

    def test_a_task_has_a_name_of_its_own(self) -> None:
        """Ids are unique across splits, as seeds depend on them. Number the tasks, or derive ids from content."""
        found = Counter(task.id for split in self.splits for task in self.source().load(split))
        twice = [name for name, count in found.items() if count > 1]
        assert not twice, f"these ids stand for several tasks: {', '.join(twice[:5])}"

    def test_the_same_tasks_come_in_the_same_order(self) -> None:
        """Draw with `random.Random(seed)`, with a seed from the options; sort contents of folders and sets."""
        source = self.source()
        for split in self.splits:
            first = list(source.load(split))
            assert list(source.load(split)) == first, "a second `load` gave other tasks"
            assert list(self.source().load(split)) == first, "a fresh source gave other tasks"

    def test_no_task_is_trained_and_evaluated_on(self) -> None:
        """Keep tasks that derive from one source in one split, and give them one `cluster`."""
        if set(self.splits) != set(SPLITS):
            return
        trained = {(task.prompt, tuple(task.files.items())) for task in self.source().load("train")}
        both = [task.id for task in self.source().load("eval") if (task.prompt, tuple(task.files.items())) in trained]
        assert not both, f"these held-out tasks are trained on, too: {', '.join(both[:5])}"

    def test_a_task_can_be_recorded(self) -> None:
        """`meta` is JSON, with None instead of NaN, and the files exist when `load` returns."""
        for task in (task for split in self.splits for task in self.source().load(split)):
            again = json.loads(json.dumps(dict(task.meta), allow_nan=False))
            assert again == dict(task.meta), f"{task.id}: meta is not JSON"
            gone = [name for name, path in task.files.items() if not Path(path).exists()]
            assert not gone, f"{task.id}: these files are not there: {', '.join(gone)}"

    def test_a_missing_truth_is_none(self) -> None:
        """An unknown truth is None, not the text of a missing number. Check rows before you make tasks of them."""
        for split in self.splits:
            made_up = [task.id for task in self.source().load(split) if _is_nan(task.reference)]
            assert not made_up, f"the truth of these tasks is missing and looks like text: {', '.join(made_up[:5])}"

    def test_a_truth_is_graded_as_right(self) -> None:
        """A source that grades answers itself gives 1 for the truth, 0 for nothing, and knows recorded tasks again."""
        source = self.source()
        if not isinstance(source, AnswerGrader):
            return
        for task in (task for split in self.splits for task in source.load(split)[:GRADED_TASKS]):
            if task.reference is not None:
                graded = asyncio.run(self.source().grade_answer(task.reference, task))  # type: ignore[attr-defined]
                assert graded == 1.0, f"{task.id}: its own truth is graded {graded}"
            assert asyncio.run(source.grade_answer("", task)) == 0.0, f"{task.id}: no answer is worth something"


def _is_nan(text: str | None) -> bool:
    if text is None:
        return False
    try:
        return math.isnan(float(text))
    except ValueError:
        return text.strip() in ("", "None", "null")
