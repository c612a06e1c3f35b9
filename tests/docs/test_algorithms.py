"""Every setting and name that the page on algorithms shows is one, with the values it says."""

import re
from dataclasses import asdict, fields
from pathlib import Path

import pytest

from mappa.config.yaml_io import parse_yaml
from mappa.session.coaches import build_coaches
from mappa.sessions import compose
from mappa.testing import load_plugins
from mappa_core.config.schema import HealthSection
from mappa_core.engine import TrainSection
from mappa_engine.options import CISPOOptions, GSPOOptions, PPOOptions, SAPOOptions, VESPOOptions

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "algorithms.md").read_text()
CONFORMANCE = ROOT / "tests/look/conformance"
LOSSES = (PPOOptions, GSPOOptions, CISPOOptions, SAPOOptions, VESPOOptions)
BLOCKS = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)


def table(heading: str) -> list[str]:
    """The first column of the table whose first heading this is."""
    body = PAGE.split(f"| {heading} |", 1)[1].split("\n\n", 1)[0].splitlines()[2:]
    return [name for line in body for name in re.findall(r"`([^`]+)`", line.split("|")[1])]


@pytest.mark.parametrize(
    "block",
    BLOCKS,
    ids=[
        "choices",
        "by agent",
        "several rewards",
        "cut off",
        "dynamic sampling",
        "reasons",
        "mentor",
        "gspo",
        "terms",
        "correction",
        "health",
    ],
)
def test_a_block_can_be_laid_over_a_recipe_and_built(block, write):
    registry = load_plugins()
    composed = compose(registry, "mathchat", config_files=[write("block.yaml", block)])
    composed.require_installed()
    config = composed.config
    for kind, use in (("losses", config.loss), ("estimators", config.estimator)):
        registry.build(kind, use.use, use.options)
    build_coaches(config, registry, registry.build("workflows", config.workflow.use, config.workflow.options))


def test_everything_offered_is_listed():
    plugins = load_plugins(only=("engine",)).plugins
    offered = [*plugins["core"].offers["estimators"], *plugins["engine"].offers["estimators"]]
    assert table("`estimator.use`") == offered
    assert table("`loss.use`") == list(plugins["engine"].offers["losses"])
    assert table("`train.mean`") == ["token", "sequence", "fixed"]
    assert table("limit") == list(asdict(HealthSection()))


def test_the_values_said_are_the_defaults():
    assert parse_yaml(BLOCKS[-1], "page").at("train.health").plain == asdict(HealthSection())
    gspo = parse_yaml(BLOCKS[7], "page").at("loss.options").plain
    assert {name: getattr(GSPOOptions(), name) for name in gspo} == gspo
    train = TrainSection()
    assert (train.epochs, train.minibatch_rows, train.mean) == (1, None, "token")


def test_the_sample_that_proves_an_estimator_is_one_that_is_run():
    sample = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert sample is not None
    run = CONFORMANCE.joinpath("test_prove_your_estimator.py").read_text()
    assert run.endswith(sample[1])


def test_the_settings_named_are_there():
    named = set(re.findall(r"`train\.(\w+)", PAGE))
    assert named <= {one.name for one in fields(TrainSection)}
    options = {one.name for loss in LOSSES for one in fields(loss)}
    named = re.findall(r"`((?:clip|ratio)_(?:low|high)|dual_clip|[a-z]+_(?:posi|nega)tive)`", PAGE)
    assert options - {"kl", "kl_coef"} == set(named)
