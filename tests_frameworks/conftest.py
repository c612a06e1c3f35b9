"""What tests of frameworks share: a team of two policies, trained through the gateway with real weights."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mappa.runs import RunReader
from mappa.sessions import Run
from mappa.training.run import TrainResult
from mappa_core import Coach, Verdict
from mappa_core.hookspecs import Offer, hookimpl
from mappa_core.plugins import load_plugins

sys.path.insert(0, str(Path(__file__).parent))

RECIPE = """
tasks: {{use: words, options: {{train: 64, eval: 16}}}}
workflow:
  use: gateway
  options:
    agents:
      planner: {{brief: Plans how to solve the problem.}}
      reviser: {{brief: Writes the plan anew.}}
    function: {function}
agents: {{planner: {{max_tokens: 24}}, reviser: {{max_tokens: 24}}}}
policies: {{default: {{model: "package:mappa_mathchat/models/tiny"}}}}
coach: {{use: brevity}}
shapers: [{{use: scale}}]
train: {{iterations: 2, prompts: 2, samples: 2, learning_rate: 5.0e-4, correction: {{kind: none}}}}
eval: {{problems: 2}}
engine: {{use: local}}
"""


class Brevity(Coach):
    """Ten points for a reply of one word, fewer for more, none for nothing: scores differ, so that there is something
    to learn."""

    def __init__(self, options: Any) -> None:
        pass

    async def score(self, scene: Any) -> Verdict:
        words = len(scene.step.reply.content.split())
        return Verdict(status="scored", score=10.0 / words if words else 0.0)


class Outside:
    """A plugin with the recipe and its coach."""

    def __init__(self, recipe: Path) -> None:
        self._recipe = recipe

    @hookimpl
    def mappa_recipes(self) -> dict[str, Path]:
        return {"team": self._recipe}

    @hookimpl
    def mappa_coaches(self) -> Any:
        yield Offer("brevity", Brevity)


@pytest.fixture
def train(tmp_path: Path) -> Callable[..., TrainResult]:
    """Train the team whose program is given."""

    def start(function: Callable[..., Any], *settings: str) -> TrainResult:
        recipe = tmp_path / "team.yaml"
        recipe.write_text(RECIPE.format(function=f"{function.__module__}:{function.__qualname__}"))
        registry = load_plugins(
            only=("look", "engine", "gateway", "mathchat", "sandbox"), modules={"outside": Outside(recipe)}
        )
        return Run.from_recipe("outside/team", f"run.root={tmp_path / 'runs'}", *settings, registry=registry).train()

    return start


@pytest.fixture
def hold() -> Callable[..., None]:
    """Hold a trained run to what every framework must do: no rollout fails, each action has its agent, and the weights
    of both policies move. `refuses`: what a framework says that asks again after an empty reply, as a policy may
    sample, and gives up after some."""

    def check(trained: TrainResult, refuses: str | None = None) -> None:
        with RunReader(trained.folder) as reader:
            found = [reader.trajectory(row.id) for row in reader.trajectories]
            reports = list(reader.iterations)
        failed = [one for one in found if one.error is not None]
        assert all(refuses is not None and refuses in one.error.message for one in failed), failed
        assert all(one.steps[-1].reply.content == "" for one in failed), "it gave up at something else"
        assert len(found) == 2 * 4 + 2 * 2 and len(failed) <= 2
        for one in (one for one in found if one.error is None):
            answers = [step for step in one.steps if refuses is None or step.reply.content]
            assert [step.agent for step in answers][:2] == ["planner", "reviser"], one.id
            assert all(step.completion.tokens is not None for step in one.steps)
        for report in reports:
            assert set(report.policies) == {"planner", "reviser"} and report.tokens > 0
        moved = {name: sum(report.policies[name]["grad_norm"] for report in reports) for name in reports[0].policies}
        assert all(norm > 0.0 for norm in moved.values()), moved

    return check
