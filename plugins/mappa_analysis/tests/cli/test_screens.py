"""Commands on a terminal of 80 columns, of the run that is shipped: no line is longer, no name or figure is broken."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from mappa_analysis.demo import unpack_demo
from mappa_core.cli.main import main

LONG = "mathchat-small-full-20261123-214803-a1b2"
SENTENCES = (
    "report ",
    "next ",
    "the run",
    "without ",
    "memory ",
    "Where ",
    "held-out ",
    "A, B",
    "B, A",
    "A: ",
    "B: ",
    "- ",
)
"""Beginnings of lines that are prose or paths: a terminal folds them, so that what is copied from them is whole."""


@pytest.fixture
def root(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setenv("COLUMNS", "80")
    unpack_demo(tmp_path)
    shutil.copytree(tmp_path / "demo", tmp_path / LONG)
    return tmp_path


def screen(capsys, *words: object) -> list[str]:
    assert main([str(word) for word in words]) == 0
    lines = capsys.readouterr().out.splitlines()
    table = [line for line in lines if not line.startswith(SENTENCES)]
    assert max(map(len, table)) <= 80, [line for line in table if len(line) > 80]
    return lines


def test_runs(root, capsys):
    _, first, second = screen(capsys, "runs", "list", "--root", root)
    assert first.split()[:3] == ["demo", "done", "8"] and re.match(r" mathchat-\S*…\S+-a1b2 +done +8 ", second)


def test_compare(root, capsys):
    lines = screen(capsys, "compare", "--arm", f"one={root / 'demo'}", "--arm", f"{LONG}={root / LONG}")
    assert any(re.match(r" [AB] - [AB] +\+0\.0 % \[-?\+?[\d.]+, \+[\d.]+\] +1\.0000 ", line) for line in lines)


def test_plan(root, capsys, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    model = "policies.default.model=somebody/a-model-with-a-name-that-is-far-too-long-for-80-columns"
    lines = screen(capsys, "plan", "--plugin", "mathchat", model)
    (row,) = (line for line in lines if line.startswith(" problem_solver"))
    assert re.search(r"somebody/\S+…\S+80-columns", row)


def test_report(root, capsys):
    lines = screen(capsys, "report", root / LONG)
    assert any(line.startswith(" scale") and line.count("%") == 3 for line in lines)
