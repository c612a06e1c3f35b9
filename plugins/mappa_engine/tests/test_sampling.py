"""From logits to tokens: the distribution drawn from, and cuts of it."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mappa_core import Sampling
from mappa_engine.local.sampling import SamplingTensors, _find_nucleus, draw_uniforms, sample_tokens

CPU = torch.device("cpu")
LOGITS = torch.tensor([[2.0, 0.0, 1.0, -1.0, 0.5]])


def drawn(sampling: Sampling, uniforms: list[float], logits: torch.Tensor = LOGITS) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and log-probabilities of one row of logits at many points."""
    ways = SamplingTensors.of([sampling] * len(uniforms), CPU)
    tokens, logprobs, _ = sample_tokens(logits.expand(len(uniforms), -1), ways, uniforms)
    return tokens.numpy(), logprobs.numpy()


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
def test_frequencies_are_those_of_the_softmax(temperature):
    n = 20_000
    tokens, _ = drawn(Sampling(temperature=temperature), draw_uniforms(Sampling(seed=5, max_tokens=n)).tolist())
    expected = torch.softmax(LOGITS[0].double() / temperature, 0).numpy() * n
    chi_square = ((np.bincount(tokens, minlength=5) - expected) ** 2 / expected).sum()
    assert chi_square < 18.5  # the 99.9 % point for 4 degrees of freedom


def test_logprobs_are_of_the_truncated_distribution():
    # softmax of twice the logits: .834 .015 .113 .002 .042; two are left of top_k 2, and both are needed for 0.9.
    tokens, logprobs = drawn(Sampling(temperature=0.5, top_k=2, top_p=0.9), [0.1, 0.999])
    assert tokens.tolist() == [0, 2]
    np.testing.assert_allclose(logprobs, torch.log_softmax(LOGITS[0, [0, 2]] / 0.5, 0).numpy(), rtol=1e-6)


def test_only_truncated_rows_have_masks():
    ways = [Sampling(top_k=2), Sampling(), Sampling(temperature=0.0, top_k=2), Sampling(top_p=0.8)]
    tokens, logprobs, masks = sample_tokens(LOGITS.expand(4, -1), SamplingTensors.of(ways, CPU), [0.9, 0.999, 0.9, 0.0])
    assert [mask.tolist() for mask in masks] == [[0, 2], [], [], [0, 2, 4]]
    assert tokens.tolist() == [2, 4, 0, 0]
    whole = torch.log_softmax(LOGITS[0], 0)
    left = [whole[[0, 2]].logsumexp(0), 0.0, 0.0, whole[[0, 2, 4]].logsumexp(0)]
    np.testing.assert_allclose(
        logprobs, [whole[token] - part for token, part in zip(tokens, left, strict=True)], rtol=1e-6
    )
    assert sample_tokens(LOGITS, SamplingTensors.of([Sampling()], CPU), [0.5]).masks is None


def test_greedy_takes_the_likeliest_with_logprobs_of_temperature_one():
    tokens, logprobs = drawn(Sampling(temperature=0.0), [0.99, 0.01])
    assert tokens.tolist() == [0, 0]
    np.testing.assert_allclose(logprobs, torch.log_softmax(LOGITS[0], 0)[0].item(), rtol=1e-6)


def test_greedy_and_drawn_rows_share_a_batch():
    ways = SamplingTensors.of([Sampling(temperature=0.0), Sampling()], CPU)
    tokens, *_ = sample_tokens(LOGITS.expand(2, -1), ways, [0.999, 0.999])
    assert tokens.tolist() == [0, 4]


@pytest.mark.parametrize(
    ("cut", "kept"),
    [
        ({"top_k": 1}, {0}),
        ({"top_k": 3}, {0, 2, 4}),
        # softmax: .529 .072 .195 .026 .118 -> .529 alone reaches .5; .529 + .195 reach .6; three are needed for .8
        ({"top_p": 0.5}, {0}),
        ({"top_p": 0.6}, {0, 2}),
        ({"top_p": 0.8}, {0, 2, 4}),
        ({"top_k": 2, "top_p": 0.75}, {0, 2}),
        ({}, {0, 1, 2, 3, 4}),
    ],
)
def test_only_kept_tokens_are_drawn(cut, kept):
    tokens, _ = drawn(Sampling(**cut), np.linspace(0, 1, 500, endpoint=False).tolist())
    assert set(tokens.tolist()) == kept


@given(st.floats(0.0, 1.0, exclude_max=True), st.lists(st.floats(-30, 30), min_size=1, max_size=8))
def test_a_token_of_probability_zero_is_never_drawn(point, logits):
    row = torch.tensor([[-torch.inf, *logits, -torch.inf]])
    tokens, logprobs = drawn(Sampling(), [point], row)
    assert 1 <= tokens[0] <= len(logits)
    assert np.isfinite(logprobs[0])


def test_uniforms_depend_on_the_seed_alone():
    assert (
        draw_uniforms(Sampling(seed=7, max_tokens=5)).tolist()
        == draw_uniforms(Sampling(seed=7, max_tokens=9)).tolist()[:5]
    )
    assert draw_uniforms(Sampling(seed=7)).tolist() != draw_uniforms(Sampling(seed=8)).tolist()


def slow_nucleus(row, top_p, top_k):
    """An independent reference: all ids in order of their probability, taken until top_p of what top_k leaves."""
    order = sorted(range(len(row)), key=lambda at: (-row[at], at))[: top_k or len(row)]
    goal, taken, left = top_p * sum(row[at] for at in order), 0.0, set()
    for at in order:
        if taken >= goal or row[at] == 0.0:
            break
        left.add(at)
        taken += row[at]
    return left


@settings(max_examples=80, deadline=None)
@given(
    st.integers(1, 700), st.sampled_from([0.05, 0.5, 0.9, 0.999, 1.0]), st.sampled_from([0, 1, 5, 300]),
    st.sampled_from([0.0, 0.3, 4.0]), st.booleans(), st.integers(0, 99),
)  # fmt: skip
def test_the_nucleus_is_that_of_a_full_sort(vocabulary, top_p, top_k, spread, ties, seed):
    logits = torch.randn(2, vocabulary, generator=torch.Generator().manual_seed(seed)) * spread
    probabilities = (logits.round() if ties else logits).double().softmax(dim=-1)
    samplings = [Sampling(max_tokens=1, temperature=1.0, top_p=top_p, top_k=min(top_k, vocabulary), seed=0)] * 2
    ids, left = _find_nucleus(probabilities, SamplingTensors.of(samplings, torch.device("cpu")))
    for row, places, kept in zip(probabilities.tolist(), ids.tolist(), left.tolist(), strict=True):
        if top_p < 1.0 or top_k:
            found = {place for place, value in zip(places, kept, strict=True) if value > 0}
            # A sum in another order may take one token more or less where it meets the goal.
            assert len(found ^ slow_nucleus(row, top_p, top_k)) <= 1
