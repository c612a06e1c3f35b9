"""How-tos about frameworks, done as they stand: files written, commands run, and what became of the team."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from mappa.cli import main
from mappa.runs import RunReader

DOCS = Path(__file__).parents[1] / "docs"
SHORT = ("train.iterations=2", "train.prompts=4", "eval.problems=2", "--name", "short")
"""What makes the training of a page as short as can be, and says where it is."""


def try_and_train(
    page: str, test: str, files: Sequence[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[str], list[str]]:
    """Write the samples of a page that are marked as tested by `test` to `files`, in order; return the arguments of the
    two commands in the last of them: to play, and to train a little."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    marked = rf"<!-- tested: tests_frameworks/{test} -->\n```\w+\n(.*?)```"
    *samples, commands = re.findall(marked, (DOCS / page).read_text("utf-8"), re.DOTALL)
    for name, text in zip(files, samples, strict=True):
        (folder / name).write_text(text)
        monkeypatch.delitem(sys.modules, name.removesuffix(".py"), raising=False)
    play, train = (line.split()[1:] for line in commands.splitlines())
    return play, [*train, *SHORT]


def check_page(commands: tuple[list[str], list[str]], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Run the two commands: playing shows verdicts of both agents; in training both act in turn in every play, all
    their actions are judged, and both policies move."""
    play, train = commands
    assert main(play) == 0
    shown = capsys.readouterr().out
    assert shown.count("problem_solver, turn 1") == shown.count("verifier, turn 1") == 2
    assert "coach     4 verdicts" in shown
    assert main(train) == 0
    with RunReader(folder / "runs" / "short") as reader:
        played = [reader.trajectory(row.id) for row in reader.trajectories]
        reports = list(reader.iterations)
    for one in played:
        assert one.error is None, one.error
        assert [step.agent for step in one.steps] == ["problem_solver", "verifier"], one.id
        assert all(step.completion.tokens is not None for step in one.steps)
    trained = [one for one in played if one.verdicts]
    assert len(trained) == 2 * 4 * 2 and all(len(one.verdicts) == 2 for one in trained)
    for policy in ("problem_solver", "verifier"):
        assert sum(report.policies[policy]["grad_norm"] for report in reports) > 0.0, policy
