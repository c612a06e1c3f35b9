"""What is known of the embedded tasks without making them: `facts.jsonl`, one line for each.

A line holds what `Task.meta` is made of, the reference model's score among it, which takes seconds of computing for
each task, and the digest of the four files. So a task is the same wherever it is cut, or it is not used.

    python -m mappa_dsbench.embedded.facts

writes the file anew, which takes about a minute. It is to be done whenever a recipe or the procedure changes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from mappa_dsbench.table import Table, described, meta_of, table_of

FILE = Path(__file__).with_name("facts.jsonl")


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """One task: its table, the number of rows to be predicted, and the digest of its files."""

    table: Table
    test_rows: int
    digest: str


def digest_of(train: bytes, test: bytes, sample: bytes, answer: bytes) -> str:
    """64 hexadecimal digits of a task's four files."""
    return sha256(b"".join(sha256(file).digest() for file in (train, test, sample, answer))).hexdigest()


@cache
def facts() -> Mapping[str, Facts]:
    """By the name of the task."""
    lines = map(json.loads, FILE.read_text(encoding="utf-8").splitlines())
    return {
        line["table"]["problem"]["name"]: Facts(
            table=table_of(line["table"]), test_rows=line["test_rows"], digest=line["digest"]
        )
        for line in lines
    }


def line_of(name: str) -> dict[str, Any]:
    """The line of one task, computed: both reference models are fitted."""
    import pandas as pd

    from mappa_dsbench.embedded.catalogue import CATALOGUE
    from mappa_dsbench.embedded.reference import read, reference

    task = CATALOGUE[name].cut()
    known = reference(task)
    train, test = read(task.train), read(task.test)
    features = [column for column in test.columns if column != task.problem.id_column]
    missing, categorical = described(pd.concat([train[features], test[features]]))
    table = Table(
        problem=task.problem,
        anchors=known.anchors,
        features=tuple(features),
        missing=missing,
        categorical=categorical,
        reference_score=known.score,
    )
    digest = digest_of(task.train, task.test, task.sample, task.answer)
    return {"digest": digest, "test_rows": len(test), "model": known.model, "table": meta_of(table)}


def main() -> None:
    """Write the file anew."""
    from mappa_dsbench.embedded.catalogue import CATALOGUE

    FILE.write_text("".join(json.dumps(line_of(name)) + "\n" for name in CATALOGUE), encoding="utf-8")


if __name__ == "__main__":
    main()
