"""`mappa dsbench prepare DIR`: reports which published tasks are usable, and the terms of their use.

Nothing is downloaded and nothing is written: the data may not be redistributed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from mappa_core import TaskError
from mappa_dsbench.published.catalogue import Published, load_catalogue
from mappa_dsbench.published.check_files import CheckedTask, check_task, find_root
from mappa_dsbench.published.prompts import PublishedTexts, read_texts

TEXT_FILES = "dsbench_modeling_*.json"
TERMS = (
    "DSBench's data may be used for education and research only, strictly non-commercially. Its authors claim no "
    "ownership: the rights stay with the competitions, and the rules of each one hold (Kaggle shows them on the "
    "competition's page, and asks to accept them before a download). The MIT licence of DSBench covers its code, not "
    "the data. Do not hand the data on."
)
SOURCE = (
    "data_modeling/data.zip of the Hugging Face data set liqiang888/DSBench; unpack it into DIR. It holds "
    "data_resplit/TASK/{train,test,SAMPLE}.csv and answers/TASK/test_answer.csv. The competitions' own files do not "
    "fit: the test tables are cut from their training tables"
)
NOT_IN_DSBENCH = "not one of DSBench's own tasks: its archive does not hold it"

TaskState = Literal["usable", "broken", "incomplete", "absent"]


def task_state(checked: CheckedTask) -> TaskState:
    """Return the state of a task; `broken`: all files exist and one of them is wrong."""
    if checked.files is not None:
        return "usable"
    if checked.absent:
        return "absent"
    return "incomplete" if any(one.reason == "missing" and one.blocks for one in checked.findings) else "broken"


def find_texts(folder: Path, root: Path) -> PublishedTexts:
    """Find the published texts beside the data, where the user has them."""
    places = dict.fromkeys(place.resolve() for place in (folder, root))
    return read_texts([path for place in places for path in sorted(place.glob(TEXT_FILES))])


def to_row(checked: CheckedTask, texts: PublishedTexts) -> dict[str, Any]:
    """Convert one task to JSON values."""
    task = checked.published
    return {
        "task": task.name,
        "state": task_state(checked),
        "split": task.split,
        "kind": task.kind,
        "metric": task.metric,
        "size": task.size,
        "needs": task.needs,
        "test_rows": None if checked.files is None else checked.files.test_rows,
        "ids": None if checked.files is None else checked.files.ids,
        "text": _text_kind(task, texts),
        "findings": [
            {"reason": one.reason, "file": one.file, "detail": one.detail, "blocks": one.blocks}
            for one in checked.findings
        ],
        "corrections": len(task.corrections),
        "competition": f"https://www.kaggle.com/competitions/{task.name}",
        "note": NOT_IN_DSBENCH if task.baseline is None else None,
    }


def _text_kind(task: Published, texts: PublishedTexts) -> Literal["own", "cleaned", "raw", "none"]:
    if any(correction.text is not None for correction in task.corrections):
        return "own"
    if task.name in texts.cleaned:
        return "cleaned"
    return "raw" if task.name in texts.raw else "none"


def format_rows(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Format the rows: one line per task, and one per finding of tasks that are partly there. Tasks that are not usable
    name the competition's page."""
    width = max(len(row["task"]) for row in rows)
    lines = []
    for row in rows:
        about = f"{row['split']:<5}  {row['kind']:<14}  {row['metric']:<16}  {row['size']}"
        lines.append(f"{row['state']:<10}  {row['task']:<{width}}  {about}")
        if row["state"] != "absent":
            lines += [f"{'':<12}{one['file']}: {one['reason']}: {one['detail']}" for one in row["findings"]]
        if row["state"] != "usable":
            lines.append(f"{'':<12}{row['note'] or row['competition']}")
    return lines


def format_summary(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Format the number of tasks in each state, the heavy usable ones, and how many have no text."""
    states = Counter(row["state"] for row in rows)
    usable = [row for row in rows if row["state"] == "usable"]
    lines = [", ".join(f"{count} {state}" for state, count in states.most_common()) + f" of {len(rows)} tasks"]
    heavy = [row["task"] for row in usable if row["size"] == "heavy"]
    if heavy:
        lines.append(f"More than 500 MB each, too much for a laptop: {', '.join(heavy)}")
    text_kinds = Counter(row["text"] for row in usable)
    if text_kinds["none"]:
        lines.append(
            f"{text_kinds['none']} usable tasks have no published text ({TEXT_FILES} in DIR): teams get the facts alone"
        )
    return lines


def check_all_tasks(folder: Path) -> dict[str, Any]:
    """Check every published task in `folder`; return JSON values, with source and terms.

    Raises:
        TaskError: there is no data in it; the message names source and terms.
    """
    try:
        root = find_root(folder)
    except TaskError as error:
        raise TaskError(f"{error}.\nFrom: {SOURCE}.\nTerms: {TERMS}") from None
    texts = find_texts(folder, root)
    rows = [to_row(check_task(root, task), texts) for task in load_catalogue().values()]
    return {"schema": 1, "root": str(root), "terms": TERMS, "source": SOURCE, "tasks": rows}


def format_survey(survey: Mapping[str, Any]) -> str:
    """Format the result of `check_all_tasks` for people."""
    rows = survey["tasks"]
    lines = [*format_rows(rows), "", *format_summary(rows), "", f"Terms: {TERMS}"]
    if any(row["state"] in ("absent", "incomplete") for row in rows):
        lines.append(f"Missing files: {SOURCE}.")
    settings = f"tasks.use=dsbench tasks.options.data={survey['root']}{_tasks_option(rows)}"
    lines.append(f"Next: mappa eval --plugin dsbench {settings}")
    return "\n".join(lines)


def _tasks_option(rows: Sequence[Mapping[str, Any]]) -> str:
    """Format the option that names the usable tasks, where some of DSBench's own are not usable."""
    if all(row["state"] == "usable" for row in rows if row["note"] is None):
        return ""
    return " 'tasks.options.tasks=[" + ",".join(row["task"] for row in rows if row["state"] == "usable") + "]'"
