"""What the page on corrections and data shows works and is true."""

import re
import shlex
from pathlib import Path

import pytest

from mappa.look.cli.export import command
from mappa.look.dataset import ExportRequest, Filters
from mappa.look.dataset.examples import PromptFormatter
from mappa.sessions import compose
from mappa.testing import load_plugins
from mappa_core.config.schema import SupervisedSection
from mappa_core.credit import demonstrations

PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
(BLOCK,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = [line.removeprefix("mappa export ") for line in PAGE.splitlines() if line.startswith("mappa export ")]


def test_the_settings_can_be_laid_over_a_recipe(write):
    config = compose(load_plugins(), "mathchat", config_files=[write("block.yaml", BLOCK)]).config
    assert (config.train.supervised.weight, config.coach.options.correction) == (0.3, True)
    assert SupervisedSection().weight == 0.0


def test_the_command_that_trains_is_one():
    (line,) = re.findall(r"^mappa train --plugin mathchat (.*)$", PAGE, re.MULTILINE)
    config = compose(load_plugins(), "mathchat", overrides=line.split()).config
    assert (config.train.supervised.weight, config.coach.options.correction) == (0.3, True)


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_is_one_that_makes_sense(line):
    context = command.make_context("export", shlex.split(line))
    given = context.params
    if given["form"] == "hf":
        return
    filters = Filters(min_score=given["min_score"], max_score=given["max_score"], blame=given["blame"])
    names = ("source", "gap", "threshold")
    order = ExportRequest(form=given["form"], filters=filters, **{name: given[name] for name in names})
    assert order.example_maker(PromptFormatter(tools={}, template_kwargs={}))


def test_every_option_of_data_sets_is_on_the_page():
    named = {name for one in command.params for name in one.opts if name.startswith("--")}
    assert {name for name in named if name not in PAGE} == {"--merged", "--dtype", "--certificate"}


def test_the_fates_of_corrections_are_those_that_are_counted():
    described = set(re.findall(r"^\| `corrections/(\w+)`", PAGE, re.MULTILINE))
    assert described == set(re.findall(r"`(\w+)`", demonstrations.CollectedDemonstrations.__doc__)) - {
        "counts",
        "max_score",
    }
    assert demonstrations.USED in described
