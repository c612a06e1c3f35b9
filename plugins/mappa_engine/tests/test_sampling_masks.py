"""Learning from what was sampled with top_p and top_k: the expected gradient is that of the distribution drawn from."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mappa_core import ConfigError, Sampling
from mappa_core.engine import EngineError
from mappa_engine.cluster.samplers.sampler import ClusterSampler
from mappa_engine.cluster.samplers.sampling_masks import check_sampling, mask_candidates, read_logprobs
from mappa_engine.learning import output_head
from mappa_engine.learning.batching import BatchLayout, SamplingMask, build_batches
from mappa_engine.learning.output_head import OutputHead
from mappa_engine.local.sampling import SamplingTensors, sample_tokens

CPU = torch.device("cpu")
LOGITS = torch.tensor([2.0, 0.0, 1.0, -1.0, 0.5])
WORTH = torch.tensor([1.0, 5.0, -2.0, 3.0, 0.5])
CUTS = [{"top_p": 0.8}, {"top_k": 2}, {"top_p": 0.75, "top_k": 3, "temperature": 0.7}]


def table() -> OutputHead:
    """A head whose logits after any hidden state are its weights."""
    head = torch.nn.Linear(1, len(LOGITS), bias=False)
    head.weight.data = LOGITS.clone()[:, None]
    return OutputHead(head)


def mask_of(ids, count):
    pairs = [(row, token) for row in range(count) for token in ids]
    rows, flat = torch.tensor(pairs).T
    return SamplingMask(rows=rows, ids=flat, uncut=torch.zeros(count, dtype=torch.bool))


def expected_gradient(cut, *, masked):
    """Of the mean worth, over all that may be sampled, with its exact probabilities; and what may be sampled."""
    _, _, (ids,) = sample_tokens(LOGITS[None], SamplingTensors.of([Sampling(**cut)], CPU), [0.5])
    temperature = torch.full((len(ids), 1), cut.get("temperature", 1.0))
    head = table()
    given = mask_of(ids.tolist(), len(ids)) if masked else None
    targets = torch.from_numpy(ids.astype(np.int64))
    logprobs, _ = head(torch.ones(len(ids), 1), targets, temperature, given, False)
    chances = torch.softmax(LOGITS[targets] / temperature[0], 0)
    (chances * WORTH[targets] * logprobs).sum().backward()
    return head.weight.grad[:, 0], targets, temperature[0]


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_the_expected_gradient_is_exact(cut):
    found, left, temperature = expected_gradient(cut, masked=True)
    logits = LOGITS.clone().requires_grad_()
    (torch.softmax(logits[left] / temperature, 0) * WORTH[left]).sum().backward()
    torch.testing.assert_close(found, logits.grad, rtol=0, atol=1e-7)
    cut_off = [token for token in range(len(LOGITS)) if token not in left]
    assert found[cut_off].abs().max() == 0.0, "what is never sampled is not moved"
    without, _, _ = expected_gradient(cut, masked=False)
    assert without[cut_off].abs().max() > 0.01


def test_a_chunk_of_the_head_has_its_own_part_of_the_mask(monkeypatch):
    torch.manual_seed(0)
    hidden, targets = torch.randn(7, 3), torch.tensor([0, 4, 1, 2, 2, 3, 0])
    head = OutputHead(torch.nn.Linear(3, 5))
    rows, ids = [0, 0, 2, 2, 2, 3, 5, 5, 6, 6], [0, 3, 0, 1, 4, 2, 3, 4, 0, 1]
    uncut = torch.tensor([False, True, False, False, True, False, False])
    mask = SamplingMask(torch.tensor(rows), torch.tensor(ids), uncut)
    whole = head(hidden, targets, None, mask, True)
    monkeypatch.setattr(output_head, "head_rows", lambda vocabulary: 2)
    for part, other in zip(head(hidden, targets, None, mask, True), whole, strict=True):
        torch.testing.assert_close(part, other)
    logits = head.logits(hidden)
    for row in range(7):
        left = logits[row] if uncut[row] else logits[row, [i for r, i in zip(rows, ids, strict=True) if r == row]]
        chances = torch.softmax(left, 0)
        assert whole[0][row].item() == pytest.approx((logits[row, targets[row]] - left.logsumexp(0)).item(), abs=1e-6)
        assert whole[1][row].item() == pytest.approx(-(chances * chances.log()).sum().item(), abs=1e-6)


def test_masks_follow_their_tokens_into_micro_batches(kit):
    experience = kit.experience(kit.rows(4))
    count = len(experience.tokens)
    sizes = np.arange(count) % 3
    experience = replace(
        experience,
        mask_tokens=np.arange(sizes.sum(), dtype=np.int32) % 259,
        mask_offsets=np.concatenate([[0], np.cumsum(sizes)]),
    )
    seen = []
    for batch in build_batches(experience, np.arange(4), BatchLayout("packed", 60), device=CPU):
        for place, token in enumerate(batch.source.tolist()):
            wanted = experience.mask_tokens[slice(*experience.mask_offsets[token : token + 2])].tolist()
            assert batch.mask.ids[batch.mask.rows == place].tolist() == wanted
            assert bool(batch.mask.uncut[place]) == (not wanted)
            seen.append(token)
    assert sorted(seen) == list(range(count))


def found(positions):
    """vLLM's log-probabilities: per position the sampled token, then the likeliest."""
    flat = [pair for pairs in positions for pair in pairs]
    ends = np.cumsum([len(pairs) for pairs in positions]).tolist()
    return SimpleNamespace(
        token_ids=[token for token, _ in flat], logprobs=[value for _, value in flat],
        start_indices=[0, *ends[:-1]], end_indices=ends,
    )  # fmt: skip


def test_mask_holds_tokens_with_a_probability():
    inf = float("inf")
    positions = [[(7, -0.5), (9, -0.1), (7, -0.5), (4, -inf)], [(3, 0.0), (3, 0.0), (1, -inf), (2, -inf)]]
    logprobs, tokens, sizes = read_logprobs(found(positions), Sampling(top_k=2), vocabulary=259)
    assert logprobs.tolist() == [-0.5, 0.0]
    assert (tokens.tolist(), sizes.tolist()) == ([9, 7, 3], [2, 1])
    plain, *masks = read_logprobs(found([[(7, -0.5)], [(3, -1.0)]]), Sampling(), vocabulary=259)
    assert (plain.tolist(), masks) == ([-0.5, -1.0], [None, None])


def test_a_mask_that_may_be_incomplete_is_an_error():
    positions = [[(0, -3.0), *((token, -3.0) for token in range(mask_candidates(Sampling(top_k=1), 259)))]]
    with pytest.raises(EngineError, match="as likely as the last"):
        read_logprobs(found(positions), Sampling(top_k=1), vocabulary=259)
    assert mask_candidates(Sampling(top_k=200), vocabulary=259) == 259
    assert mask_candidates(Sampling(temperature=0.0, top_k=5), 259) == mask_candidates(Sampling(), 259) == 0


@pytest.mark.parametrize("cut", [{"top_p": 0.9}, {"top_k": 257}, {"top_p": 0.9, "top_k": 0, "temperature": 0.1}])
def test_a_mask_of_any_size_is_refused(cut):
    with pytest.raises(ConfigError, match="top_k from 1 to 256"):
        check_sampling(Sampling(**cut))
    check_sampling(Sampling(top_p=0.9, top_k=50))
    check_sampling(Sampling(temperature=0.0, top_p=0.9))


def test_a_temperature_that_vllm_would_raise_is_refused():
    with pytest.raises(ConfigError, match=r"temperature of 0\.005: vLLM would sample at 0\.01"):
        check_sampling(Sampling(temperature=0.005))
    check_sampling(Sampling(temperature=0.01))


async def test_settings_that_vllm_refuses_are_config_errors():
    """Refused by an engine's process it would be a failure of the engine."""
    reading = SimpleNamespace(model_name="tiny", stops=frozenset({2}))
    sampler = ClusterSampler("solver", reading, pool=None, window=160, template_kwargs={})
    with pytest.raises(ConfigError, match="top_k from 1 to 256"):
        await sampler.sample(np.arange(3, dtype=np.int32), Sampling(top_p=0.9, max_tokens=8))
