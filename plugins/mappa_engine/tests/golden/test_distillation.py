"""The estimator `distill` with a loss against public code, on the same ragged batch: gradients and values of a step."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from mappa.testing import load_plugins
from mappa_core.engine import CorrectionSection, TrainSection
from mappa_engine.credit.distill import Distill, DistillOptions
from mappa_engine.learning.batching import BatchLayout
from mappa_engine.learning.update import PolicyUpdate

from .test_losses import Table, experience_of

REGISTRY = load_plugins(only=("engine", "sandbox"))
FOUND = json.loads((Path(__file__).parent / "distillation.json").read_text())
TRAIN = TrainSection(iterations=1, mean="sequence", correction=CorrectionSection(kind="none"))


def scored():
    """The batch, whose rows without a teacher have NaN for its log-probabilities."""
    taught = np.repeat(np.array(FOUND["taught"], bool), FOUND["lengths"])
    teacher = np.where(taught, FOUND["teacher"], np.nan)
    return replace(experience_of(FOUND | {"ref": FOUND["old"]}), teacher_logprobs=teacher)


@pytest.mark.parametrize("loss", ["ppo", "cispo"])
def test_step_matches_sdpo_of_trl(loss):
    experience = scored()
    given, _ = Distill(DistillOptions(), None)(experience, {})
    learner, options = Table(FOUND["old"]), REGISTRY.offer("losses", loss).options()
    layout = BatchLayout("packed", 9)
    built = REGISTRY.build("losses", loss, options)
    metrics = PolicyUpdate(learner, experience, given, built, TRAIN, layout=layout).run(0.0, seed=0)
    np.testing.assert_allclose(learner.logprobs.grad, FOUND["sdpo"]["grad"], atol=1e-6)
    if loss == "cispo":  # -A log p, as there; that of `ppo` has the same gradient and another value
        assert metrics["loss"] == pytest.approx(FOUND["sdpo"]["value"], abs=1e-6)


@pytest.mark.parametrize("discount", [0.0, 0.5, 1.0])
def test_advantages_match_minillm_of_trl_up_to_a_factor_per_token(discount):
    """TRL weighs the token at place t by discount^t once more, where its documentation does not."""
    experience = replace(scored(), teacher_logprobs=np.array(FOUND["teacher"]))
    given, _ = Distill(DistillOptions(discount=discount), None)(experience, {})
    place = np.concatenate([np.arange(length) for length in FOUND["lengths"]])
    found = given.advantages * (discount**place if discount else 1.0)
    np.testing.assert_allclose(found, FOUND[f"minillm_{discount:g}"], atol=1e-5)


def test_batch_distinguishes_conventions():
    """Rows of several lengths, one without a teacher, and gaps of both signs."""
    gaps = np.subtract(FOUND["teacher"], FOUND["old"])
    assert gaps.min() < -1.0
    assert gaps.max() > 1.0
    assert FOUND["taught"].count(0) == 1
    assert torch.isfinite(torch.tensor(FOUND["teacher"])).all()
