"""The limits that the page on the sandbox shows are the defaults."""

import re
from pathlib import Path

from mappa.sessions import compose
from mappa.testing import load_plugins
from mappa_core.config.schema import LimitsSection
from mappa_core.sandbox import ToolSection

PAGE = (Path(__file__).parents[2] / "docs" / "sandbox.md").read_text()
BLOCKS = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)


def test_the_limits_shown_are_the_defaults(write):
    composed = compose(load_plugins(), "mathchat", config_files=[write("block.yaml", BLOCKS[0])])
    tool = composed.config.tools["python"]
    assert vars(tool.limits) == vars(LimitsSection()) and tool.retries == ToolSection().retries
