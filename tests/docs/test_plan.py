"""The page on plans names what is there; what it types is typed in `test_samples.py`."""

import re
from pathlib import Path

from mappa_engine.options import ClusterOptions

PAGE = (Path(__file__).parents[2] / "docs" / "plan.md").read_text()


def test_the_page_names_settings_that_are_there():
    named = re.findall(r"^\| `engine\.options\.(\w+)=", PAGE, re.MULTILINE)
    assert len(named) == 5 and set(named) <= set(vars(ClusterOptions()))
