"""Importance weights, by hand."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mappa_core import Advantages
from mappa_core.engine import CorrectionSection, TrainSection
from mappa_engine.learning.importance_weights import compute_importance_weights
from mappa_engine.losses import PPOLoss
from mappa_engine.options import PPOOptions

NAN, INF = float("nan"), float("inf")


def scored(kit, ratios, logprob=-1.0):
    """Rows whose tokens have these ratios of learner to sampler."""
    rows = [
        kit.Row([5, 6], [7] * len(ratios_of_row), [logprob] * len(ratios_of_row), trajectory=index)
        for index, ratios_of_row in enumerate(ratios)
    ]
    experience = kit.experience(rows)
    logs = np.log(np.concatenate([np.asarray(ratios_of_row, np.float64) for ratios_of_row in ratios]))
    return replace(experience, old_logprobs=(experience.logprobs + logs).astype(np.float32))


def weights(kit, ratios, **settings) -> list[float]:
    experience = scored(kit, ratios)
    return compute_importance_weights(
        experience, np.arange(len(ratios)), CorrectionSection(**settings)
    ).weights.tolist()


def test_tokens_are_truncated_at_the_cap(kit):
    assert weights(kit, [[0.1, 1.0], [1.5, 3.0]]) == pytest.approx([0.1, 1.0, 1.5, 2.0])


def test_tokens_beyond_the_cap_or_its_inverse_are_masked(kit):
    found = weights(kit, [[0.4, 0.6], [1.9, 2.1]], kind="mask")
    assert found == pytest.approx([0.0, 0.6, 1.9, 0.0])


def test_sequence_weight_is_the_product_of_ratios(kit):
    ratios = [[0.5, 3.0], [1.5, 2.0], [0.25]]
    assert weights(kit, ratios, level="sequence") == pytest.approx([1.5, 1.5, 2.0, 2.0, 0.25])
    masked = weights(kit, ratios, level="sequence", kind="mask")
    assert masked == pytest.approx([1.5, 1.5, 0.0, 0.0, 0.0])


def test_geometric_mean_filters_actions_of_any_length(kit):
    # Geometric means 1, 1.1, 0.8 and unknown: single tokens may be far off, and a product of many near ones is.
    ratios = [[0.5, 2.0], [1.1] * 3, [0.8, 0.8], [NAN, 1.0]]
    both = {"geometric_low": 0.9, "geometric_high": 1.05}
    assert weights(kit, ratios, kind="none", **both) == pytest.approx([1.0, 1.0, *[0.0] * 7])
    assert weights(kit, ratios, cap=1.5, geometric_high=1.05) == pytest.approx(
        [0.5, 1.5, *[0.0] * 3, 0.8, 0.8, 0.0, 0.0]
    )
    low = weights(kit, ratios, level="sequence", kind="mask", cap=1.3, geometric_low=0.9)
    assert low == pytest.approx([1.0, 1.0, *[0.0] * 7])
    found = compute_importance_weights(scored(kit, ratios), np.arange(4), CorrectionSection(kind="none", **both))
    assert found.metrics["correction_share"] == pytest.approx(7 / 9)


def test_kind_none_gives_metrics_only(kit):
    found = compute_importance_weights(scored(kit, [[0.5, 4.0]]), np.arange(1), CorrectionSection(kind="none"))
    assert found.weights is None
    assert found.metrics["correction_share"] == 0.0
    assert found.metrics["mismatch_max"] == pytest.approx(np.log(4.0))


def test_metrics_by_hand(kit):
    experience = scored(kit, [[0.5, 1.0], [4.0, 1.0]])
    found = compute_importance_weights(experience, np.arange(2), CorrectionSection()).metrics
    assert found["mismatch_max"] == pytest.approx(np.log(4.0), rel=1e-5)
    assert found["mismatch_mean"] == pytest.approx((np.log(2.0) + np.log(4.0)) / 4, rel=1e-5)
    assert found["mismatch_kl"] == pytest.approx(((0.5 - 1 + np.log(2.0)) + (4 - 1 - np.log(4.0))) / 4, rel=1e-5)
    assert found["ess"] == pytest.approx(6.5**2 / (4 * 18.25), rel=1e-5)
    assert found["correction_share"] == 0.25
    by_action = compute_importance_weights(experience, np.arange(2), CorrectionSection(level="sequence")).metrics
    assert by_action["ess"] == pytest.approx(4.5**2 / (2 * 16.25), rel=1e-5)
    assert by_action["correction_share"] == 0.5


def test_equal_logprobs_give_weight_one(kit):
    found = compute_importance_weights(scored(kit, [[1.0, 1.0], [1.0]]), np.arange(2), CorrectionSection())
    assert found.weights.tolist() == [1.0, 1.0, 1.0]
    assert found.metrics == {
        "mismatch_max": 0.0,
        "mismatch_mean": 0.0,
        "mismatch_kl": 0.0,
        "ess": 1.0,
        "correction_share": 0.0,
    }


def test_other_rows_have_no_weight(kit):
    found = compute_importance_weights(scored(kit, [[3.0], [0.5], [8.0]]), np.array([1]), CorrectionSection())
    np.testing.assert_array_equal(found.weights, np.float32([np.nan, 0.5, np.nan]))
    assert found.metrics["mismatch_max"] == pytest.approx(np.log(2.0), rel=1e-5)


def test_no_rows_have_no_metrics(kit):
    found = compute_importance_weights(scored(kit, [[3.0]]), np.zeros(0, np.int64), CorrectionSection())
    assert (found.weights, found.metrics) == (None, {})


@pytest.mark.parametrize(
    ("sampled", "old", "truncated", "masked"),
    [(-1.0, -INF, 0.0, 0.0), (-INF, -1.0, 2.0, 0.0), (-INF, -INF, 0.0, 0.0), (NAN, -1.0, 0.0, 0.0), (-1.0, NAN, 0, 0)],
)
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_weights_are_finite(kit, sampled, old, truncated, masked, level):
    experience = kit.experience([kit.Row([5, 6], [7, 8], [sampled, -1.0]), kit.Row([5], [9], [-1.0], trajectory=1)])
    experience = replace(experience, old_logprobs=np.float32([old, -1.0, -1.0]))
    for kind, expected in (("truncate", truncated), ("mask", masked)):
        found = compute_importance_weights(experience, np.arange(2), CorrectionSection(kind=kind, level=level))
        assert found.weights.tolist() == [expected, expected if level == "sequence" else 1.0, 1.0]
        assert 0.0 < found.metrics["ess"] <= 1.0
        assert found.metrics["correction_share"] >= (0.0 if kind == "truncate" and old == -INF else 1 / 3)


def test_missing_logprob_makes_the_mismatch_nan(kit):
    experience = replace(scored(kit, [[1.0, 1.0]]), logprobs=np.float32([NAN, -1.0]))
    found = compute_importance_weights(experience, np.arange(1), CorrectionSection()).metrics
    assert all(np.isnan(found[name]) for name in ("mismatch_max", "mismatch_mean", "mismatch_kl"))


def test_effective_sample_size_of_unknown_ratios_is_zero(kit):
    experience = replace(scored(kit, [[1.0]]), logprobs=np.float32([NAN]))
    assert compute_importance_weights(experience, np.arange(1), CorrectionSection()).metrics["ess"] == 0.0


@given(
    logs=st.lists(st.floats(-1000, 1000, width=32), min_size=1, max_size=8),
    kind=st.sampled_from(["truncate", "mask"]),
    level=st.sampled_from(["token", "sequence"]),
    cap=st.floats(1.0, 10.0),
)
def test_weights_are_between_zero_and_the_cap(kit, logs, kind, level, cap):
    experience = kit.experience([kit.Row([5], [7] * len(logs), [0.0] * len(logs))])
    experience = replace(experience, old_logprobs=np.array(logs, np.float32))
    found = compute_importance_weights(experience, np.arange(1), CorrectionSection(kind=kind, level=level, cap=cap))
    assert ((found.weights >= 0.0) & (found.weights <= np.float32(cap))).all()
    assert 0.0 < found.metrics["ess"] <= 1.0 + 1e-9
    assert 0.0 <= found.metrics["correction_share"] <= 1.0


async def test_weights_multiply_the_loss_of_tokens(qwen3, opened, kit):
    """Rows that are masked whole leave what rows of weight 0 leave: but for the mean, which still counts them."""
    train = TrainSection(iterations=10, learning_rate=1e-3, correction=CorrectionSection(kind="mask"))
    engine = await opened(qwen3, train=train)
    experience = await engine.score(kit.experience(kit.rows(4)))
    given = np.random.default_rng(0).normal(size=len(experience.tokens)).astype(np.float32)
    loss, on_policy = PPOLoss(PPOOptions()), replace(experience, logprobs=experience.old_logprobs)
    first = (await engine.update(on_policy, Advantages(advantages=given), loss, 0.0))["solver"]
    assert first["loss"] == pytest.approx(-given.mean(), rel=1e-4)
    engine = await opened(qwen3, train=train)
    before = (await engine.publish())["solver"].checksum
    far = replace(experience, logprobs=experience.old_logprobs - np.float32(3.0))
    second = (await engine.update(far, Advantages(advantages=given), loss, 0.0))["solver"]
    assert (second["loss"], second["grad_norm"], second["correction_share"]) == (0.0, 0.0, 1.0)
    assert (await engine.publish())["solver"].checksum == before
    half = np.where(experience.row_of_token < 2, np.float32(0.0), np.float32(0.5))
    engine = await opened(qwen3, train=train)
    shifted = replace(experience, logprobs=experience.old_logprobs + half)
    third = (await engine.update(shifted, Advantages(advantages=given), loss, 0.0))["solver"]
    assert third["loss"] == pytest.approx(-(given * np.exp(-half)).mean(), rel=1e-4)
