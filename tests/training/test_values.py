"""An estimator that reads values needs policies with a value head, and says so before anything is played."""

from __future__ import annotations

import pytest

from mappa_core.errors import ConfigError
from mappa_core.training import Run


@pytest.fixture
def train(registry, tmp_path):
    def run(*settings):
        return Run.from_recipe("doubles/tiny", f"run.root={tmp_path / 'runs'}", *settings, registry=registry).train()

    return run


def test_gae_without_a_value_head_is_refused(train, tmp_path) -> None:
    with pytest.raises(ConfigError) as caught:
        train("estimator.use=gae")
    assert str(caught.value) == (
        "estimator.use=gae needs values, and the policy 'doubler' of agent 'doubler' has no value head; set "
        "policies.default.value_head=true, or choose an estimator that needs none"
    )
    assert not (tmp_path / "runs").exists()


def test_only_the_policies_that_it_serves_need_one(train) -> None:
    own = "policies.checker={model: none}"
    with pytest.raises(
        ConfigError, match=r"estimator\.by_agent\.checker\.use=gae .* set policies\.checker\.value_head"
    ):
        train("estimator.by_agent={checker: {use: gae}}", own)
    with pytest.raises(ConfigError, match=r"policy 'doubler' of agent 'doubler' .* set policies\.default\.value_head"):
        train("estimator.use=gae", "policies.checker={model: none, value_head: true}")
