"""Every setting that the page on SandboxFusion shows works, and every option is on it."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from mappa.sessions import compose
from mappa.testing import load_plugins
from mappa_sandboxfusion.options import Options

PAGE = (Path(__file__).parents[3] / "docs" / "sandboxfusion.md").read_text()
BLOCKS = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
ROWS = dict(re.findall(r"^\| `(\w+)` \| `?([^`|]+?)`? \|", PAGE, re.MULTILINE))


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_can_be_laid_over_a_recipe(block: str, tmp_path: Path) -> None:
    path = tmp_path / "block.yaml"
    path.write_text(block)
    composed = compose(load_plugins(), "mathchat", config_files=[path])
    composed.require_installed()
    assert composed.config.tools["python"].use == "sandboxfusion"


def test_every_option_is_documented_with_its_default() -> None:
    defaults = Options()
    assert {name: yaml.safe_load(value) for name, value in ROWS.items()} == {
        field.name: getattr(defaults, field.name) for field in fields(Options)
    }
