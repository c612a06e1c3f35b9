"""The reference is what the code says: made anew, it is what is there."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "docs" / "site" / "reference.py"


@pytest.fixture(scope="module")
def made():
    spec = spec_from_file_location("docs_reference", SCRIPT)
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.FOLDER, module.pages()


def test_every_page_is_what_the_code_says(made):
    folder, pages = made
    assert {path.name for path in folder.iterdir()} == set(pages)
    stale = [name for name, text in pages.items() if (folder / name).read_text("utf-8") != text]
    assert not stale, f"{', '.join(stale)}: make the reference anew with python docs/site/reference.py"


def test_nothing_is_left_out(made):
    from mappa_core import errors
    from mappa_core.cli.main import COMMANDS
    from mappa_core.config.schema import RunConfig
    from mappa_core.plugins import HOOKS

    _, pages = made
    assert [name for name in HOOKS if f"## `{name}`" not in pages["hooks.md"]] == []
    assert [name for name in COMMANDS if f"## mappa {name}\n" not in pages["cli.md"]] == []
    assert [name for name in vars(RunConfig()) if f"`{name}" not in pages["config.md"]] == []
    named = [name for name, one in vars(errors).items() if isinstance(one, type) and issubclass(one, errors.MappaError)]
    assert [name for name in named if name not in pages["exit-codes.md"]] == []
