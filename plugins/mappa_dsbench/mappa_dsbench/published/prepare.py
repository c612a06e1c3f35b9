"""`mappa dsbench prepare DIR`: which published tasks are there, which are not, and on which terms they may be used.

Nothing is fetched and nothing is written: the data is not ours to hand on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from mappa_core import TaskError
from mappa_dsbench.published.catalogue import Published, catalogue
from mappa_dsbench.published.layout import Checked, check, find_root
from mappa_dsbench.published.prompts import Texts, read_texts

TEXTS = "dsbench_modeling_*.json"
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

State = Literal["usable", "broken", "incomplete", "absent"]


def state_of(checked: Checked) -> State:
    """`usable`; `broken` where files are there and one of them is wrong; `incomplete`; `absent`."""
    if checked.files is not None:
        return "usable"
    if checked.absent:
        return "absent"
    return "incomplete" if any(one.reason == "missing" and one.blocks for one in checked.findings) else "broken"


def find_texts(folder: Path, root: Path) -> Texts:
    """The published texts beside the data, where the user has them."""
    places = dict.fromkeys(place.resolve() for place in (folder, root))
    return read_texts([path for place in places for path in sorted(place.glob(TEXTS))])


def as_row(checked: Checked, texts: Texts) -> dict[str, Any]:
    """One task as JSON values."""
    task = checked.published
    return {
        "task": task.name,
        "state": state_of(checked),
        "split": task.split,
        "kind": task.kind,
        "metric": task.metric,
        "size": task.size,
        "needs": task.needs,
        "test_rows": None if checked.files is None else checked.files.test_rows,
        "ids": None if checked.files is None else checked.files.ids,
        "text": _text_of(task, texts),
        "findings": [
            {"reason": one.reason, "file": one.file, "detail": one.detail, "blocks": one.blocks}
            for one in checked.findings
        ],
        "corrections": len(task.corrections),
        "competition": f"https://www.kaggle.com/competitions/{task.name}",
        "note": NOT_IN_DSBENCH if task.baseline is None else None,
    }


def _text_of(task: Published, texts: Texts) -> Literal["own", "cleaned", "raw", "none"]:
    if any(correction.text is not None for correction in task.corrections):
        return "own"
    if task.name in texts.cleaned:
        return "cleaned"
    return "raw" if task.name in texts.raw else "none"


def lines_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The same for people: one line for each task, and one for each finding of those that are partly there. Where
    something is missing or broken, the competition's page is named."""
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


def summary_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """How many tasks are in which state, how large the usable ones are, and whether texts were found."""
    states = Counter(row["state"] for row in rows)
    usable = [row for row in rows if row["state"] == "usable"]
    lines = [", ".join(f"{count} {state}" for state, count in states.most_common()) + f" of {len(rows)} tasks"]
    heavy = [row["task"] for row in usable if row["size"] == "heavy"]
    if heavy:
        lines.append(f"More than 500 MB each, too much for a laptop: {', '.join(heavy)}")
    told = Counter(row["text"] for row in usable)
    if told["none"]:
        lines.append(f"{told['none']} usable tasks have no published text ({TEXTS} in DIR): teams get the facts alone")
    return lines


def survey(folder: Path) -> dict[str, Any]:
    """Every published task as found in `folder`, as JSON values, with source and terms.

    Raises:
        TaskError: there is no data in it; the message says where it is to be had, and on which terms.
    """
    try:
        root = find_root(folder)
    except TaskError as error:
        raise TaskError(f"{error}.\nFrom: {SOURCE}.\nTerms: {TERMS}") from None
    texts = find_texts(folder, root)
    rows = [as_row(check(root, task), texts) for task in catalogue().values()]
    return {"schema": 1, "root": str(root), "terms": TERMS, "source": SOURCE, "tasks": rows}


def report(found: Mapping[str, Any]) -> str:
    """A survey for people to read."""
    rows = found["tasks"]
    lines = [*lines_of(rows), "", *summary_of(rows), "", f"Terms: {TERMS}"]
    if any(row["state"] in ("absent", "incomplete") for row in rows):
        lines.append(f"Missing files: {SOURCE}.")
    settings = f"tasks.use=dsbench tasks.options.data={found['root']}{_chosen(rows)}"
    lines.append(f"Next: mappa eval --plugin dsbench {settings}")
    return "\n".join(lines)


def _chosen(rows: Sequence[Mapping[str, Any]]) -> str:
    """How the usable tasks are named where others that DSBench has are not."""
    if all(row["state"] == "usable" for row in rows if row["note"] is None):
        return ""
    return " 'tasks.options.tasks=[" + ",".join(row["task"] for row in rows if row["state"] == "usable") + "]'"
