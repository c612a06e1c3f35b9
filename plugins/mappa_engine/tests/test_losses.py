"""Losses and divergences by hand, and what their gradients are in expectation. Public code's numbers: tests/golden."""

import math

import numpy as np
import pytest
import torch

from mappa.sessions import compose
from mappa.testing import load_plugins
from mappa_core import ConfigError
from mappa_core.engine import LossRows
from mappa_engine.losses import CISPOLoss, GSPOLoss, PPOLoss, SAPOLoss, VESPOLoss
from mappa_engine.losses.kl_penalty import k1, k2, k3
from mappa_engine.losses.value_loss import value_losses
from mappa_engine.options import CISPOOptions, GSPOOptions, PPOOptions, SAPOOptions, VESPOOptions


def tensor(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def rows(old, ref=None, row=None) -> LossRows:
    count = len(old)
    return LossRows(
        logprobs=tensor(old),
        old_logprobs=tensor(old),
        ref_logprobs=None if ref is None else tensor(ref),
        weight=torch.ones(count),
        row=torch.arange(count) if row is None else torch.tensor(row),
    )


def gradient(loss, new, given, advantages) -> list[float]:
    new = tensor(new).requires_grad_()
    loss(new, given, tensor(advantages))[0].sum().backward()
    return new.grad.tolist()


def counted(sums) -> dict[str, float]:
    return {name: float(total) for name, total in sums.items()}


def test_clip_by_hand():
    # Ratios 2, 0.5, 2, 0.5: the clip acts only where it makes the objective worse for the policy.
    new = tensor([2.0, 0.5, 2.0, 0.5]).log()
    losses, sums = PPOLoss(PPOOptions(clip_low=0.2, clip_high=0.3))(new, rows([0.0] * 4), tensor([1.0, 1, -1, -1]))
    assert losses.tolist() == pytest.approx([-1.3, -0.5, 2.0, 0.8])
    assert counted(sums) == {"clip_share": 2, "clip_share_low": 1, "clip_share_high": 1}


def test_dual_clip_by_hand():
    # Ratios 4, 2, 4: beyond 3 a token of negative advantage weighs as much as at 3, and has no gradient.
    new, loss = np.log([4.0, 2.0, 4.0]), PPOLoss(PPOOptions(dual_clip=3.0))
    losses, sums = loss(tensor(new), rows([0.0] * 3), tensor([-0.5, -0.5, 0.5]))
    assert losses.tolist() == pytest.approx([1.5, 1.0, -0.6])
    assert counted(sums) == {"clip_share": 2, "clip_share_low": 0, "clip_share_high": 1, "clip_share_dual": 1}
    assert gradient(loss, new, rows([0.0] * 3), [-0.5, -0.5, 0.5]) == pytest.approx([0.0, 1.0, 0.0])
    assert gradient(PPOLoss(PPOOptions()), new, rows([0.0] * 3), [-0.5, -0.5, 0.5]) == pytest.approx([2.0, 1.0, 0.0])


def test_large_ratios_are_not_clamped():
    # A token 30 nats likelier than it was, and bad: clamped at 20 nats it would have no gradient at all.
    assert gradient(PPOLoss(PPOOptions()), [-1.0], rows([-31.0]), [-1.0]) == pytest.approx([math.exp(30.0)])


def test_gspo_by_hand():
    # Rows of tokens (0, 2) and (1, 3, 4), mixed up: ratios exp((0.2 + 0.4) / 2) and exp(-0.3 / 3).
    row, new, loss = [0, 1, 0, 1, 1], [0.2, -0.2, 0.4, 0.1, -0.2], GSPOLoss(GSPOOptions(clip_low=0.2, clip_high=0.2))
    given, advantages = rows([0.0] * 5, row=row), [1.0, 1.0, -1.0, 2.0, 3.0]
    losses, sums = loss(tensor(new), given, tensor(advantages))
    first, second = math.exp(0.3), math.exp(-0.1)
    assert losses.tolist() == pytest.approx([-1.2, -second, first, -2 * second, -3 * second])
    assert counted(sums) == {"clip_share": 1, "clip_share_low": 0, "clip_share_high": 1}
    assert gradient(loss, new, given, advantages) == pytest.approx([0.0, -second, first, -2 * second, -3 * second])


def test_gspo_has_the_gradient_of_the_plain_sequence_ratio():
    """Averaged over an action whose tokens share an advantage; by differences, as that form has no stops."""
    new, old, advantage = np.array([-0.5, -1.2, -0.1]), np.array([-0.4, -1.5, -0.3]), -0.7

    def plain(at):
        return -advantage * math.exp((at - old).mean())

    loss = GSPOLoss(GSPOOptions(clip_low=0.9, clip_high=0.9))
    found = np.array(gradient(loss, new, rows(old, row=[0, 0, 0]), [advantage] * 3)) / 3
    steps = 1e-6 * np.eye(3)
    assert found == pytest.approx([(plain(new + step) - plain(new - step)) / 2e-6 for step in steps])


def test_cispo_by_hand():
    # Ratios 4, 0.1, 1: every token keeps a gradient, of a weight within the bounds.
    new, loss = [-0.5, -3.0, -1.0], CISPOLoss(CISPOOptions(ratio_low=0.25, ratio_high=2.0))
    given = rows([-0.5 - math.log(4), -3.0 - math.log(0.1), -1.0])
    losses, sums = loss(tensor(new), given, tensor([1.0, -1.0, 2.0]))
    assert losses.tolist() == pytest.approx([1.0, -0.75, 2.0])
    assert counted(sums) == {"clip_share": 2, "clip_share_low": 1, "clip_share_high": 1}
    assert gradient(loss, new, given, [1.0, -1.0, 2.0]) == pytest.approx([-2.0, 0.25, -2.0])


def test_sapo_by_hand():
    # Ratios 2 and 1/2. With s = sigmoid(tau (ratio - 1)): loss -A s 4 / tau, and its gradient is -A ratio 4 s (1 - s).
    new, loss = [math.log(2.0), math.log(0.5)], SAPOLoss(SAPOOptions(tau_positive=1.0, tau_negative=2.0))
    gates = [1 / (1 + math.exp(-1.0)), 1 / (1 + math.exp(1.0))]
    losses, sums = loss(tensor(new), rows([0.0] * 2), tensor([3.0, -5.0]))
    assert losses.tolist() == pytest.approx([-3.0 * 4.0 * gates[0], 5.0 * 2.0 * gates[1]])
    slopes = [-3.0 * 2.0 * 4 * gates[0] * (1 - gates[0]), 5.0 * 0.5 * 4 * gates[1] * (1 - gates[1])]
    assert gradient(loss, new, rows([0.0] * 2), [3.0, -5.0]) == pytest.approx(slopes)
    assert sums == {}


def test_vespo_by_hand():
    # Actions of tokens (0, 2) and (1): W = exp(0.1 + 0.4), exp(-0.2); weights W^2 e^(3 (1 - W)), W^3 e^(2 (1 - W)).
    row, new, loss = [0, 1, 0], [0.1, -0.2, 0.4], VESPOLoss(VESPOOptions())
    first, second = math.exp(0.5), math.exp(-0.2)
    weights = [first**2 * math.exp(3 * (1 - first)), second**3 * math.exp(2 * (1 - second))]
    given = rows([0.0] * 3, row=row)
    slopes = [-weights[0] * 2.0, weights[1], -weights[0] * 2.0]
    assert gradient(loss, new, given, [2.0, -1.0, 2.0]) == pytest.approx(slopes)
    losses, sums = loss(tensor(new), given, tensor([2.0, -1.0, 2.0]))
    assert losses.tolist() == pytest.approx([slope * step for slope, step in zip(slopes, new, strict=True)])
    assert sums == {}


def test_vespo_ignores_distant_actions():
    # 200 nats to either side: the ratio leaves float32, and the weight is 0.
    for gap in (200.0, -200.0):
        new = torch.tensor([gap - 300.0], requires_grad=True)
        losses, _ = VESPOLoss(VESPOOptions())(new, rows([-300.0]), torch.tensor([1.0]))
        losses.sum().backward()
        assert new.grad.item() == 0.0


def test_clips_do_nothing_on_policy():
    """The learner is what it was when it scored, so ratios are 1, whatever the bounds: REINFORCE for all of them."""
    logprobs, advantages = [-0.3, -2.0, -1.1, -0.7], [1.0, -2.0, 0.5, 0.0]
    given = rows(logprobs, row=[0, 0, 1, 1])
    for bound in (0.0, 1e-4, 0.2):
        losses = (
            PPOLoss(PPOOptions(clip_low=bound, clip_high=bound, dual_clip=1.0 + 2 * bound + 1e-9)),
            GSPOLoss(GSPOOptions(clip_low=bound, clip_high=bound)),
            CISPOLoss(CISPOOptions(ratio_low=1.0 - bound, ratio_high=1.0 + bound)),
        )
        for loss in losses:
            assert gradient(loss, logprobs, given, advantages) == pytest.approx(
                [-advantage for advantage in advantages]
            )
            assert counted(loss(tensor(logprobs), given, tensor(advantages))[1])["clip_share"] == 0
    for loss in (SAPOLoss(SAPOOptions(tau_positive=3.0)), VESPOLoss(VESPOOptions())):
        assert gradient(loss, logprobs, given, advantages) == pytest.approx([-advantage for advantage in advantages])


def test_the_gradients_of_divergences_in_expectation():
    """Over all tokens that the policy may sample: nothing, that of KL(p || q), and that of KL(q || p)."""
    logits, q = tensor([0.3, -1.0, 0.8, 0.1]).requires_grad_(), torch.softmax(tensor([1.0, 0.2, -0.5, 0.0]), 0)

    def expected(estimate):
        logprobs = torch.log_softmax(logits, 0)
        return torch.autograd.grad((logprobs.exp().detach() * estimate(logprobs, q.log())).sum(), logits)[0]

    def of(divergence):
        return torch.autograd.grad(divergence(torch.log_softmax(logits, 0)), logits)[0].tolist()

    assert expected(k1).tolist() == pytest.approx([0.0] * 4, abs=1e-12)
    assert expected(k2).tolist() == pytest.approx(of(lambda logp: (logp.exp() * (logp - q.log())).sum()))
    assert expected(k3).tolist() == pytest.approx(of(lambda logp: (q * (q.log() - logp)).sum()))


def test_the_corrected_divergence_is_exact_after_the_policy_has_moved():
    """Sampled by the policy before the update: value and gradient are those of KL(p || q) of the policy as it is now,
    and k2's are not."""
    logits, q = tensor([0.3, -1.0, 0.8, 0.1]).requires_grad_(), torch.softmax(tensor([1.0, 0.2, -0.5, 0.0]), 0)
    old = torch.softmax(tensor([-0.5, 0.4, 0.2, 1.0]), 0)

    def expected(kl):
        loss, given = PPOLoss(PPOOptions(kl=kl, kl_coef=1.0)), rows(old.log().tolist(), q.log().tolist())
        value = (old * loss(torch.log_softmax(logits, 0), given, torch.zeros(4))[0]).sum()
        return value.item(), torch.autograd.grad(value, logits)[0].tolist()

    logprobs = torch.log_softmax(logits, 0)
    exact = (logprobs.exp() * (logprobs - q.log())).sum()
    slope = torch.autograd.grad(exact, logits)[0].tolist()
    assert expected("k3_corrected") == (pytest.approx(exact.item()), pytest.approx(slope))
    assert expected("k2")[1] != pytest.approx(slope, rel=0.1)


def test_divergence_estimates_in_expectation():
    p, q = tensor([0.5, 0.3, 0.2]), tensor([0.2, 0.3, 0.5])
    divergence = (p * (p / q).log()).sum().item()
    assert (p * k1(p.log(), q.log())).sum().item() == pytest.approx(divergence)
    assert (p * k3(p.log(), q.log())).sum().item() == pytest.approx(divergence)


@pytest.mark.parametrize("make", [PPOLoss, GSPOLoss, CISPOLoss, SAPOLoss, VESPOLoss])
@pytest.mark.parametrize(("kl", "added"), [("k1", 0.05), ("k2", 0.0125), ("k3", 0.1 * (math.exp(-0.5) - 0.5))])
def test_the_divergence_is_added_with_its_coefficient(make, kl, added):
    kinds = {PPOLoss: PPOOptions, GSPOLoss: GSPOOptions, CISPOLoss: CISPOOptions, SAPOLoss: SAPOOptions}
    options = kinds.get(make, VESPOOptions)
    losses, _ = make(options(kl=kl, kl_coef=0.1))(tensor([-1.0]), rows([-1.0], [-1.5]), tensor([0.0]))
    assert losses.item() == pytest.approx(added)


def test_value_losses_by_hand():
    # Moved by 0.5 towards the target, held at 0.2; away from it; without a target.
    values, old = tensor([0.5, -0.5, 3.0]).requires_grad_(), tensor([0.0, 0.0, 0.0])
    targets = tensor([1.0, 1.0, math.nan])
    losses = value_losses(values, old, targets, 0.2)
    assert losses.tolist() == pytest.approx([0.64, 2.25, 0.0])
    losses.sum().backward()
    assert values.grad.tolist() == pytest.approx([0.0, -3.0, 0.0])
    assert value_losses(values, None, targets, None).tolist() == pytest.approx([0.25, 2.25, 0.0])


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (PPOLoss, PPOOptions(kl="k4")),
        (PPOLoss, PPOOptions(kl="k3", kl_coef=-1.0)),
        (PPOLoss, PPOOptions(clip_low=1.5)),
        (PPOLoss, PPOOptions(clip_high=-0.1)),
        (PPOLoss, PPOOptions(clip_high=math.inf)),
        (PPOLoss, PPOOptions(dual_clip=1.2)),
        (GSPOLoss, GSPOOptions(clip_low=-0.1)),
        (GSPOLoss, GSPOOptions(kl="KL")),
        (CISPOLoss, CISPOOptions(ratio_high=0.2)),
        (CISPOLoss, CISPOOptions(ratio_low=1.1)),
        (SAPOLoss, SAPOOptions(tau_positive=0.0)),
        (SAPOLoss, SAPOOptions(tau_negative=math.inf)),
        (VESPOLoss, VESPOOptions(k_negative=-1.0)),
        (VESPOLoss, VESPOOptions(lambda_positive=0.0)),
    ],
)
def test_invalid_options_are_refused(make, options):
    with pytest.raises(ConfigError, match=r"loss\.options"):
        make(options)


@pytest.mark.parametrize("use", ["ppo", "gspo", "cispo", "sapo", "vespo"])
@pytest.mark.parametrize(("key", "options"), [("kl_coef", "{kl_coef: 0.1}"), ("kl", "{kl: k3}")])
def test_kl_and_kl_coef_need_each_other(use, key, options):
    registry = load_plugins(only=("engine", "sandbox", "mathchat"))
    with pytest.raises(ConfigError, match=rf"^loss\.options\.{key}: must .*set by command line"):
        compose(registry, "mathchat", overrides=(f"loss={{use: {use}, options: {options}}}",))


def test_a_divergence_without_a_reference_is_refused():
    with pytest.raises(ConfigError, match="reference"):
        PPOLoss(PPOOptions(kl="k3", kl_coef=1.0))(tensor([0.0]), rows([0.0]), tensor([1.0]))
