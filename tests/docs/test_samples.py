"""Every sample of every page is done as a reader would do it."""

from __future__ import annotations

import os
import re
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from mappa.sessions import Run
from mappa.testing import load_plugins


def _module(path: Path):
    spec = spec_from_file_location("docs_samples", path)
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


samples = _module(Path(__file__).parent / "samples.py")
ROOT, TUTORIALS = samples.ROOT, samples.ROOT / "docs" / "tutorials"
FOLLOWED = (TUTORIALS / "team.md", TUTORIALS / "coach.md", TUTORIALS / "mcp.md")
"""Pages that go on where the one before ended."""
PAGES = [page for page in samples.pages() if page not in FOLLOWED]


@pytest.fixture(scope="session")
def short(tmp_path_factory) -> Path:
    """A run as short as can be, for pages that look at one."""
    folder = tmp_path_factory.mktemp("short")
    settings = (*samples.SHORT, "coach.options.correction=true", f"run.root={folder}", "run.name=NAME")
    return (
        Run.from_recipe(
            "mathchat/tiny", *settings, registry=load_plugins(only=("look", "engine", "mathchat", "sandbox"))
        )
        .train()
        .folder
    )


@pytest.fixture
def reader(short, site, tmp_path, monkeypatch):
    """Somebody in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    return samples.Reading(samples.copy_of(short), site.install, lambda: site.python_path)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_shows_works(page, reader):
    for block in samples.blocks_of(page):
        reader.do(block)


@pytest.mark.slow
def test_the_tutorials_can_be_followed_one_after_the_other(reader):
    for page in FOLLOWED:
        for block in samples.blocks_of(page):
            reader.do(block)


def test_a_team_takes_fewer_than_twenty_commands_and_edits():
    blocks = [block for block in samples.blocks_of(FOLLOWED[0]) if not block.marks]
    edits = sum(block.title is not None for block in blocks)
    commands = sum(len(block.commands) for block in blocks if block.language == "bash" and block.title is None)
    assert 10 < edits + commands < 20


def test_no_sample_hides_from_the_tests():
    languages = {"bash", "python", "yaml", "toml", "json", "jsonl", "markdown", "sql", "text", ""}
    for page in samples.pages():
        text = page.read_text("utf-8")
        blocks = list(samples.blocks_of(page))
        assert len(re.findall(r"^ *```", text, re.MULTILINE)) == 2 * len(blocks), f"{page}: a block is not closed"
        assert "\n    mappa " not in text.replace("\n        ", "\n") or page.parent.name == "reference", page
        assert {block.language for block in blocks} <= languages, page
