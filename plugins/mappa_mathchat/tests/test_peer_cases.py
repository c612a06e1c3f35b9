"""The plain expressions of Math-Verify's public tests (0.9, Apache-2.0), as facts in a form of our own.

Cases of theirs that hold no single expression on either side (an answer in running text, several boxes) or that try an
option of their functions are not among them. The page of this package lists every difference, and why it is one.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from mappa_mathchat.algebra_workers import AlgebraWorker, AnswerBudget
from mappa_mathchat.equality import answers_equal

HERE = Path(__file__).parent
CASES = [json.loads(line) for line in (HERE / "peer_cases.jsonl").read_text(encoding="utf-8").splitlines()]
ROW = re.compile(r"^\| (?P<kind>[a-z ]+) \| (?P<count>\d+) \| .+ \|$", re.MULTILINE)


@pytest.fixture(scope="module")
def algebra():
    worker = AlgebraWorker()
    yield lambda answer, reference: AnswerBudget(worker, 5.0).equal(answer, reference)
    worker.close()


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['answer']} for {case['reference']}"[:80])
def test_both_say_the_same_but_where_a_difference_is_stated(case, algebra):
    expected = case["right"] != ("differs" in case)
    assert answers_equal(case["answer"], case["reference"], algebra) == expected


def test_no_difference_accepts_what_they_refuse():
    assert all(case["right"] for case in CASES if "differs" in case)


def test_the_page_states_every_difference():
    page = (HERE.parent / "README.md").read_text(encoding="utf-8")
    stated = {row["kind"]: int(row["count"]) for row in ROW.finditer(page)}
    assert stated == Counter(case["differs"] for case in CASES if "differs" in case)
    assert f"{len(CASES)} plain expressions" in page
