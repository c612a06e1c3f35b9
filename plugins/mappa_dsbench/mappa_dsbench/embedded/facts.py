"""The stored facts of the embedded tasks: `facts.jsonl`, one line per task.

A line holds the values of `Task.meta`, among them the reference model's score, which takes seconds to compute, and the
digest of the four files. So a task is the same on every machine, or it is not used.

    python -m mappa_dsbench.embedded.facts

rewrites the file, which takes about a minute. Run it whenever a recipe or the procedure changes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from mappa_dsbench.table import Table, has_missing_and_text, table_from_meta, table_to_meta

FACTS_FILE = Path(__file__).with_name("facts.jsonl")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFacts:
    """The facts of one task: its table, the number of rows to predict, and the digest of its files."""

    table: Table
    test_rows: int
    digest: str


def digest_files(train: bytes, test: bytes, sample: bytes, answer: bytes) -> str:
    """Compute the digest of a task's four files, 64 hexadecimal digits."""
    return sha256(b"".join(sha256(file).digest() for file in (train, test, sample, answer))).hexdigest()


@cache
def load_facts() -> Mapping[str, TaskFacts]:
    """Load the facts of all tasks, by name."""
    lines = map(json.loads, FACTS_FILE.read_text(encoding="utf-8").splitlines())
    return {
        line["table"]["problem"]["name"]: TaskFacts(
            table=table_from_meta(line["table"]), test_rows=line["test_rows"], digest=line["digest"]
        )
        for line in lines
    }


def compute_line(name: str) -> dict[str, Any]:
    """Compute the line of one task; this fits both reference models."""
    import pandas as pd

    from mappa_dsbench.embedded.catalogue import CATALOGUE
    from mappa_dsbench.embedded.reference import fit_reference, read_table_bytes

    task = CATALOGUE[name].make_files()
    known = fit_reference(task)
    train, test = read_table_bytes(task.train), read_table_bytes(task.test)
    features = [column for column in test.columns if column != task.problem.id_column]
    missing, categorical = has_missing_and_text(pd.concat([train[features], test[features]]))
    table = Table(
        problem=task.problem,
        anchors=known.anchors,
        features=tuple(features),
        missing=missing,
        categorical=categorical,
        reference_score=known.score,
    )
    digest = digest_files(task.train, task.test, task.sample, task.answer)
    return {"digest": digest, "test_rows": len(test), "model": known.model, "table": table_to_meta(table)}


def main() -> None:
    """Rewrite the file."""
    from mappa_dsbench.embedded.catalogue import CATALOGUE

    FACTS_FILE.write_text("".join(json.dumps(compute_line(name)) + "\n" for name in CATALOGUE), encoding="utf-8")


if __name__ == "__main__":
    main()
