"""What a run learns from, built of its config and its workflow."""

from __future__ import annotations

import pytest

from mappa.session.credit import build_experience_builder
from mappa.sessions import compose
from mappa.testing import load_plugins
from mappa_core import Role, Task, Trajectory, Workflow


class Solves(Workflow):
    agents = {"writer": Role(brief="writes")}  # noqa: RUF012
    metric = "solved"

    async def run(self, stage):
        raise NotImplementedError


@pytest.mark.parametrize(("options", "reward"), [("", 0.5), ("scale: 4.0", 2.0), ("metric: kept", 0.25)])
def test_a_shaper_reads_the_metric_of_the_workflow_unless_another_is_set(acme, options, reward):
    registry = load_plugins()
    composed = compose(registry, "acme", overrides=[f"shapers=[{{use: outcome, options: {{{options}}}}}]"])
    (shaper,) = build_experience_builder(composed.config, registry, Solves()).shapers
    played = Trajectory(
        id="t", task=Task(id="q", prompt="?"), sample=0, iteration=0, outcome={"solved": 0.5, "kept": 0.25}
    )
    assert shaper(played, (None, 7.0)) == (reward, reward)
