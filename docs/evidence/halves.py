"""Split a set of labelled failures by the hash of the question: rules are made on one half, reported on the other.

    python docs/evidence/halves.py who_and_when.jsonl.gz development.jsonl reported.jsonl

A question that occurs in several lines is in one half only.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import sys
from pathlib import Path


def is_reported(question: str) -> bool:
    """Whether a question belongs to the half that is reported: its SHA-256 is odd."""
    return hashlib.sha256(question.strip().encode()).digest()[-1] % 2 == 1


def main() -> None:
    source, development, reported = map(Path, sys.argv[1:4])
    opener = gzip.open if source.suffix == ".gz" else open
    with opener(source, "rt", encoding="utf-8") as lines:
        rows = [line for line in lines if line.strip()]
    for path, half in ((development, False), (reported, True)):
        chosen = [row for row in rows if is_reported(json.loads(row)["question"]) is half]
        path.write_text("".join(chosen), encoding="utf-8")
        print(f"{path}: {len(chosen)} of {len(rows)} runs")


if __name__ == "__main__":
    main()
