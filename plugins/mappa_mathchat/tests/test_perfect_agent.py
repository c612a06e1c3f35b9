"""An agent whose verdicts have become equal stays as it is, while the others learn."""

import pytest

from mappa.runs import RunReader
from mappa.sessions import Run
from mappa.testing import load_plugins
from mappa_core import Offer, Verdict, hookimpl
from mappa_mathchat.rule_coach import RuleCoach, RuleOptions

PERFECT = "problem_solver"


class PerfectPlans(RuleCoach):
    """The rules, for which every plan is right but those of the first iteration's odd samples."""

    async def score(self, scene):
        if scene.step.agent != PERFECT:
            return await super().score(scene)
        split, _, sample, _ = scene.step.id.split("/")
        return Verdict.scored(0.0 if split == "train-000000" and int(sample) % 2 else 10.0, "")


class PerfectPlansOffer:
    @hookimpl
    def mappa_coaches(self):
        yield Offer("perfect-plans", PerfectPlans, RuleOptions)


@pytest.fixture
def divergences(tmp_path):
    """The divergence of every policy after each of some iterations at the recipe's full rate, in nats per token."""
    registry = load_plugins(modules={"perfect": PerfectPlansOffer()})
    run = Run.from_recipe(
        "mathchat/tiny", f"run.root={tmp_path}", "run.name=run", "coach.use=perfect-plans", "train.prompts=2",
        "train.iterations=6", "train.warmup_iterations=0", "eval.problems=1", registry=registry,
    )  # fmt: skip
    folder = run.train().folder
    with RunReader(folder) as reader:
        return [{name: figures["kl"] for name, figures in one.policies.items()} for one in reader.iterations]


@pytest.mark.soak
def test_divergence_of_a_perfect_agent_stays_small_and_others_learn(divergences):
    """Trained on its divergence alone, whitened to the strength of a reward, it would move by 0.027 nats."""
    assert max(one[PERFECT] for one in divergences) < 0.01
    assert all(max(one[other] for one in divergences) > 0.01 for other in ("code_executor", "verifier"))
