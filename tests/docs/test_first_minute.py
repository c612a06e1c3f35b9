"""The first minute that README promises to people with logs: one command after the install, without a key, says who
failed, in which step, and why."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from mappa.cli import main

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
LOG = ROOT / "tests/fixtures/first_minute/langgraph.jsonl"
"""Three plays of a team of LangGraph: the analyst's tool is right, and the analyst misreads it."""


def test_logs_of_another_framework_say_who_failed_where_and_why(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copy(LOG, "LOG")
    (block,) = re.findall(r"```bash\n(pip install mappa\n.*?)```", README, re.DOTALL)
    _, *commands = block.splitlines()
    assert len(commands) == 1
    for command in commands:
        capsys.readouterr()
        assert main(command.split()[1:]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"\n analyst .* 3 of 3 ", shown), shown
    assert re.search(r"\n writer .* 0 of 3 ", shown), shown
    assert "analyst  3 times, first " in shown and "/001" in shown and "165" in shown
