"""The figures of the coach `evidence` on sets that it was not made on: of the frozen rules, and on the page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from unseen_blame import FROZEN, OPEN, UNSEEN, rules_hash

ROOT = Path(__file__).parents[2]
STORED = json.loads((ROOT / "docs/evidence/results/unseen_blame.json").read_text("utf-8"))
PAGE = (ROOT / "docs/evidence/blame.md").read_text("utf-8")


def test_the_figures_are_of_the_frozen_rules():
    assert STORED["rules"] == FROZEN
    assert rules_hash() == FROZEN, (
        "rules of evidence changed after they were frozen: the page has to say so, with a first look of their own at "
        "sets that nobody has looked at"
    )


@pytest.mark.parametrize("name", (*OPEN, *UNSEEN))
def test_the_page_says_what_is_stored(name):
    figures = STORED["sets"][name]
    (row,) = [line for line in PAGE.splitlines() if f" {name}, {figures['failed']:,} |" in line]
    cells = [cell.strip(" *") for cell in row.split("|")[2:-1]]
    first = figures["first"]
    assert cells[0] == str(figures["accused"])
    assert cells[3] == f"{100 * first['mean']:.1f} [{100 * first['low']:.1f}, {100 * first['high']:.1f}]"
    assert cells[4] == f"{100 * figures['top_three']['mean']:.1f}"
    assert cells[5] == f"{100 * figures['best_constant']:.1f}"
    if figures["accused"] > 10:
        right = figures["accused_right"]
        assert cells[1] == f"{100 * right['mean']:.1f} [{100 * right['low']:.1f}, {100 * right['high']:.1f}]"
