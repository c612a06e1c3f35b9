"""PPO and its divergences: by hand, and against the numbers of public code (golden/README.md)."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from mappa_core.engine.losses import PPOLoss, k1, k3
from mappa_core.engine.options import PPOOptions
from mappa_core.errors import ConfigError
from mappa_core.protocols import LossRows

GOLDEN = json.loads((Path(__file__).parent / "golden" / "ppo.json").read_text())


def tensor(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def rows(old, ref=None) -> LossRows:
    count = len(old)
    return LossRows(
        logprobs=tensor(old),
        old_logprobs=tensor(old),
        ref_logprobs=None if ref is None else tensor(ref),
        weight=torch.ones(count),
        row=torch.arange(count),
    )


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: case["name"])
def test_loss_and_gradient_are_those_of_public_code(case):
    batch = GOLDEN["batches"][case["batch"]]
    new = tensor(batch["new"]).requires_grad_()
    loss = PPOLoss(PPOOptions(**case["options"]))
    losses, _ = loss(new, rows(batch["old"], batch["ref"]), tensor(batch[case["advantages"]]))
    losses.mean().backward()
    assert losses.mean().item() == pytest.approx(case["loss"], abs=1e-9)
    np.testing.assert_allclose(new.grad.numpy(), case["grad"], atol=1e-9)


@pytest.mark.parametrize(("name", "estimate"), [("k1", k1), ("k3", k3)])
def test_divergences_are_those_of_public_code(name, estimate):
    golden = GOLDEN["kl"]
    logprobs = tensor(golden["logprobs"]).requires_grad_()
    found = estimate(logprobs, tensor(golden["ref_logprobs"]))
    found.sum().backward()
    np.testing.assert_allclose(found.detach().numpy(), golden[name]["kl"], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(logprobs.grad.numpy(), golden[name]["grad"], rtol=1e-9, atol=1e-9)


def test_clip_by_hand():
    # Ratios 2, 0.5, 2, 0.5: the clip acts only where it makes the objective worse for the policy.
    new = tensor([2.0, 0.5, 2.0, 0.5]).log()
    losses, sums = PPOLoss(PPOOptions(clip_low=0.2, clip_high=0.3))(new, rows([0.0] * 4), tensor([1.0, 1, -1, -1]))
    assert losses.tolist() == pytest.approx([-1.3, -0.5, 2.0, 0.8])
    assert sums["clip_share"] == 2
    assert sums["ratio_mean"].item() == pytest.approx(5.0)


def test_the_divergence_is_added_with_its_coefficient():
    new, ref = tensor([-1.0]), [-1.5]
    losses, _ = PPOLoss(PPOOptions(kl="k1", kl_coef=0.1))(new, rows([-1.0], ref), tensor([0.0]))
    assert losses.item() == pytest.approx(0.05)


@pytest.mark.parametrize("options", [{"kl": "k2"}, {"clip_low": 1.5}, {"clip_high": -0.1}])
def test_options_that_make_no_sense_are_refused(options):
    with pytest.raises(ConfigError):
        PPOLoss(PPOOptions(**options))


def test_a_divergence_without_a_reference_is_refused():
    with pytest.raises(ConfigError, match="reference"):
        PPOLoss(PPOOptions(kl="k3", kl_coef=1.0))(tensor([0.0]), rows([0.0]), tensor([1.0]))
