"""Every setting that the page on engines shows is one, with the values it says."""

import re
from pathlib import Path

import pytest

from mappa.config.yaml_io import parse_yaml
from mappa.sessions import compose
from mappa.testing import load_plugins
from mappa_core.engine import CorrectionSection
from mappa_engine.options import ClusterOptions

PAGE = (Path(__file__).parents[2] / "docs" / "engines.md").read_text()
BLOCKS = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=["cluster", "ahead"])
def test_a_block_can_be_laid_over_a_recipe(block, write):
    config = compose(load_plugins(), "mathchat", config_files=[write("block.yaml", block)]).config
    shown = parse_yaml(block, "page").at("engine.options").plain
    assert {name: getattr(config.engine.options, name) for name in shown} == shown


def test_the_settings_named_have_the_values_said():
    assert f"truncated (TIS) at a cap of {CorrectionSection().cap:g} per\ntoken by default" in PAGE
    assert set(re.findall(r"`engine\.options\.(\w+)`", PAGE)) <= set(vars(ClusterOptions()))
