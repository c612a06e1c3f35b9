"""Every setting that the page on policies shows works."""

import re
from dataclasses import asdict
from pathlib import Path

import pytest

from mappa.config.yaml_io import parse_yaml
from mappa.session.policies import build_policy_specs
from mappa.sessions import assign_policies, compose
from mappa.testing import load_plugins
from mappa_core.config.schema import LoraSection

PAGE = (Path(__file__).parents[2] / "docs" / "policies.md").read_text()
BLOCKS = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
AGENTS = ("solver", "coder", "verifier")


def composed(write, block):
    return compose(load_plugins(), "mathchat", config_files=[write("block.yaml", block)]).config


@pytest.mark.parametrize("block", BLOCKS, ids=["kinds", "shared", "adapters", "from", "url"])
def test_a_block_can_be_laid_over_a_recipe(block, write):
    config = composed(write, block)
    assert build_policy_specs(config, assign_policies(config, AGENTS).values())


def test_the_kinds_are_those_that_a_policy_can_have(write):
    config = composed(write, BLOCKS[0])
    specs = {spec.name: spec for spec in build_policy_specs(config, AGENTS)}
    assert [specs[name].kind for name in AGENTS] == ["lora", "lora", "frozen"]
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)) == {"kind", "full", "lora", "frozen", "api"}


def test_agents_that_share_a_policy_have_one(write):
    config = composed(write, BLOCKS[1])
    assert [spec.name for spec in build_policy_specs(config, assign_policies(config, AGENTS).values())] == [
        "team",
        "verifier",
    ]


def test_the_adapter_shown_is_the_default_but_for_its_targets(write):
    shown = parse_yaml(BLOCKS[2], "page").at("policies.default.lora").plain
    assert {**shown, "targets": None} == asdict(LoraSection())


def test_commands_shown_are_those_there_are():
    from mappa.look.cli.export import command

    options = {name for parameter in command.params for name in parameter.opts}
    lines = re.findall(r"^mappa export (.*?)(?:  |$)", PAGE, re.MULTILINE)
    assert len(lines) == 2
    assert {word for line in lines for word in line.split() if word.startswith("--")} <= options
