"""The references are scored only where something reads them."""

import pytest

from mappa.session.policies import reads_reference
from mappa.sessions import compose
from mappa.testing import load_plugins

NO_RULE = "train.health.kl=null"


@pytest.mark.parametrize(
    ("words", "read"),
    [
        ((), True),  # kl_coef of the recipe
        (("estimator.options.kl_coef=0",), True),  # the health rule
        (("estimator.options.kl_coef=0", NO_RULE), False),
        ((NO_RULE,), True),
        (("estimator={use: grpo}", NO_RULE), False),
        (("estimator={use: grpo, by_agent: {verifier: {use: reinforce_plus_plus}}}", NO_RULE), True),
        (("estimator={use: grpo}", "loss.options={kl: k3, kl_coef: 0.1}", NO_RULE), True),
        (("estimator={use: distill}", NO_RULE), True),  # it does not say
    ],
)
def test_what_reads_the_references(words, read):
    registry = load_plugins(only=("engine", "sandbox", "mathchat"))
    assert reads_reference(compose(registry, recipe="mathchat/tiny", overrides=words).config) is read
