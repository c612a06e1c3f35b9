"""Commands on a terminal of 80 columns, of the run that is shipped: no line is longer, no name or figure is broken."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import click
import pytest

from mappa.cli import main
from mappa.look.demo import unpack_demo

LONG = "mathchat-small-full-20261123-214803-a1b2"
COPIED = ("report ", "next ")
"""Beginnings of lines that hold a path or a command: a terminal folds them, so that what is copied is whole."""


@pytest.fixture
def root(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")  # For rich it is a terminal.
    unpack_demo(tmp_path)
    shutil.copytree(tmp_path / "demo", tmp_path / LONG)
    return tmp_path


def screen(capsys, *words: object) -> list[str]:
    assert main([str(word) for word in words]) == 0
    lines = click.unstyle(capsys.readouterr().out).splitlines()
    wide = [line for line in lines if len(line) > 80 and " " in line.strip()]
    assert not [line for line in wide if not line.startswith(COPIED)]
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


def test_judge(root, capsys):
    lines = screen(capsys, "judge", root / "demo", "--coach", "evidence")
    trajectories = [line for line in lines if re.fullmatch(r"train-\d{6}/words-\w{16}/\d{3}  \w+", line)]
    assert len(trajectories) == 10
    assert len([line for line in lines if re.match(r"   reward \d\.\d\d -> \d\.\d\d, advantage [-+]\d", line)]) == 10


@pytest.mark.parametrize("words", [("observe", "demo"), ("runs", "show", "demo"), ("coach", "eval", "--run", "demo")])
def test_commands_on_the_demo_name_its_agents_in_full(root, capsys, monkeypatch, words):
    monkeypatch.chdir(root)
    others = ("--coach", "evidence") if words[0] == "coach" else ()
    text = "\n".join(screen(capsys, *words, *others))
    assert "problem_solver" in text and "…" not in text


def test_doctor(root, capsys, monkeypatch):
    monkeypatch.chdir(root)
    lines = screen(capsys, "doctor")
    assert all(line.startswith((" " * 29, "  yes  ", "  no   ")) for line in lines if line.startswith(" "))
