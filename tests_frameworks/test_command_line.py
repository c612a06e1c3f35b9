"""A command-line agent of two models, around the tool `llm`: the page on it, done as it stands."""

from __future__ import annotations

import sys
from pathlib import Path

from pages import check_page, try_and_train

PAGE, FILES = "how-to/command-line-agent.md", ("my_agent.sh", "own.yaml")


def test_the_command_of_the_page_is_trained_with_two_policies(tmp_path, monkeypatch, capsys):
    # `llm` is installed beside this Python.
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    commands = try_and_train(PAGE, "test_command_line.py", FILES, tmp_path, monkeypatch)
    check_page(commands, tmp_path, capsys)
