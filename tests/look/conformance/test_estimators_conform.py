"""Every estimator that core offers has the gradient that it claims."""

from dataclasses import replace

import numpy as np
import pytest

from mappa.look.conformance import EstimatorContract, expected_gradient, policy_gradient, possible_batches
from mappa.look.conformance.standard_processes import FIXED_TURNS, VARIABLE_TURNS
from mappa.testing import load_plugins

REGISTRY = load_plugins(only=())


def built(name, **options):
    return REGISTRY.build("estimators", name, REGISTRY.offer("estimators", name).options(**options))


class TestReinforce(EstimatorContract):
    unbiased_for = "action"

    def estimator(self):
        return built("reinforce")


class TestReinforceWithADivergence(EstimatorContract):
    unbiased_for = "action"
    kl_coef = 0.5
    tolerance = 1e-6  # log-probabilities are no dyadic fractions

    def estimator(self):
        return built("reinforce", kl_coef=0.5)


class TestReinforcePlusPlus(EstimatorContract):
    unbiased_for = "action"

    def estimator(self):
        return built("reinforce_plus_plus", kl_coef=0.0, normalize="none")


class TestReinforcePlusPlusWithADivergence(EstimatorContract):
    unbiased_for = "action"
    kl_coef = 0.5
    tolerance = 1e-6

    def estimator(self):
        return built("reinforce_plus_plus", kl_coef=0.5, normalize="none")


class TestRloo(EstimatorContract):
    """An action without a sibling learns nothing; of the others it is exact."""

    unbiased_for = "action"

    def estimator(self):
        return built("rloo")

    def share(self, siblings):
        return float(siblings > 1)


class TestDrGrpo(EstimatorContract):
    """A_i = R_i - mean = (n-1)/n (R_i - mean of the others), whose expectation is that of (n-1)/n R_i."""

    unbiased_for = "action"
    tolerance = 1e-6  # a mean of three is no dyadic fraction

    def estimator(self):
        return built("dr_grpo")

    def share(self, siblings):
        return (siblings - 1) / siblings


class TestRlooByState(TestRloo):
    siblings = "state"

    def estimator(self):
        return built("rloo", groups="state")


class TestRlooByEpisode(TestRloo):
    """Own later actions are left out of the baseline, so a whole episode does no harm."""

    siblings = "episode"
    tolerance = 1e-6  # a mean of three is no dyadic fraction

    def estimator(self):
        return built("rloo", groups="episode")


class TestReinforcePlusPlusBaseline(TestDrGrpo):
    def estimator(self):
        return built("reinforce_plus_plus_baseline", kl_coef=0.0, normalize="none")


class TestGae(EstimatorContract):
    """With lambda 1 any values do that hang on nothing but what was read before the token."""

    unbiased_for = "return"

    def estimator(self):
        gae = built("gae", lam=1.0, kl_coef=0.0, normalize="none")

        def with_other_values(experience, state):
            into = np.arange(len(experience.tokens)) - experience.offsets[experience.row_of_token]
            read = np.diff(experience.prompt_offsets)[experience.row_of_token] + into
            return gae(replace(experience, values=(read % 3).astype(np.float32)), state)

        return with_other_values


class TestGaeWithATrueValueFunction(EstimatorContract):
    """Any lambda does where the values are exact."""

    unbiased_for = "return"

    def estimator(self):
        return built("gae", lam=0.5, kl_coef=0.0, normalize="none")


@pytest.mark.parametrize("lam", [0.0, 0.5, 1.0])
def test_targets_of_gae_expect_to_the_true_values(lam):
    """Whatever lambda and whitening, by the past that was read."""
    sums, estimator = {}, built("gae", lam=lam, kl_coef=0.0)
    for batch in possible_batches(VARIABLE_TURNS):
        e = batch.experience
        given, _ = estimator(e, {})
        for token, row in enumerate(e.row_of_token.tolist()):
            prompt = e.prompt_tokens[e.prompt_offsets[row] : e.prompt_offsets[row + 1]]
            past = (*prompt.tolist(), *e.tokens[e.offsets[row] : token].tolist())
            gap = float(given.value_targets[token]) - float(e.values[token])
            sums[past] = sums.setdefault(past, 0.0) + batch.chance * gap
    assert len(sums) == 6
    assert max(map(abs, sums.values())) < 1e-10


@pytest.mark.parametrize("process", [FIXED_TURNS, VARIABLE_TURNS], ids=lambda one: one.name)
def test_each_agent_follows_the_gradient_of_its_own_estimator(process, combine_estimators):
    own = built("gae", lam=1.0, kl_coef=0.0, normalize="none")
    found = expected_gradient(process, combine_estimators(built("rloo"), {"solver": own}))
    of_solver = np.array([policy == "solver" for policy, _, _ in process.parameters])
    exact = np.where(of_solver, policy_gradient(process, "return"), policy_gradient(process, "action"))
    np.testing.assert_allclose(found, exact, atol=1e-10)
