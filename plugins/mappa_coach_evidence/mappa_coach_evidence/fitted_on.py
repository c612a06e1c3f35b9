"""The questions on whose labels the shipped weights were made, as hashes: no certificate can rest on them."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

FILE = "fitted_on.txt"


@cache
def shipped_questions() -> frozenset[str]:
    """`Task.question_hash` of each, as docs/evidence/evidence_weights.py wrote them."""
    return frozenset(files(__package__).joinpath(FILE).read_text("utf-8").split())
