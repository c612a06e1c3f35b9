"""What commands print about where programs of agents run."""

from __future__ import annotations

import pytest

from mappa.cli.announce import announce_sandboxes
from mappa.cli.progress import LineProgress, QuietListener
from mappa.commands import Console
from mappa_core.sandbox import Sandbox

SANDBOXES = {"python": Sandbox(name="padded", detail="a [soft] one", warnings=("the [door] is open",))}


def test_progress_prints_the_sandbox_of_each_tool_and_its_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    LineProgress(Console(width=40), 1).on_sandboxes(SANDBOXES)
    assert capsys.readouterr().out.splitlines() == [
        "programs of the tool python run in padded (a [soft] one)",
        "programs of the tool python: the [door] is open",
    ]


def test_quiet_progress_prints_only_warnings_of_sandboxes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    QuietListener().on_sandboxes(SANDBOXES)
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "programs of the tool python: the [door] is open\n")


def test_a_quiet_command_prints_nothing_of_a_sandbox_without_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    announce_sandboxes(Console(width=40), {"python": Sandbox(name="padded")}, quiet=True)
    assert capsys.readouterr().out == ""
