"""The reference is what the code says: made anew, it is what is there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


def texts(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text("utf-8") for path in folder.iterdir()}


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Made in a process of its own: click keeps what a command that was called alone once said of its help."""
    folder = tmp_path_factory.mktemp("reference")
    subprocess.run([sys.executable, DOCS / "site" / "reference.py", folder], check=True)
    return texts(folder)


def test_every_page_is_what_the_code_says(pages):
    there = texts(DOCS / "reference")
    assert set(there) == set(pages)
    stale = [name for name, text in pages.items() if there[name] != text]
    assert not stale, f"{', '.join(stale)}: make the reference anew with python docs/site/reference.py"


def test_nothing_is_left_out(pages):
    from mappa.cli.command_group import command_names
    from mappa.sessions import RunConfig
    from mappa_core import errors
    from mappa_core.plugins import HOOK_NAMES

    assert [name for name in HOOK_NAMES if f"## `{name}`" not in pages["hooks.md"]] == []
    assert [name for name in command_names() if f"## mappa {name}\n" not in pages["cli.md"]] == []
    assert [name for name in vars(RunConfig()) if f"`{name}" not in pages["config.md"]] == []
    named = [name for name, one in vars(errors).items() if isinstance(one, type) and issubclass(one, errors.MappaError)]
    assert [name for name in named if name not in pages["exit-codes.md"]] == []
