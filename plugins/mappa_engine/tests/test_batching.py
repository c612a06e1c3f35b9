"""Micro-batches: every sampled token once, whatever layout and ranks, and sequences that never see each other."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from mappa_engine.errors import ModelError
from mappa_engine.learning import output_head
from mappa_engine.learning.batching import BatchLayout, build_batches, split_over_ranks
from mappa_engine.learning.logprob_model import LogprobModel
from mappa_engine.learning.model_checks import check_model

CPU = torch.device("cpu")
LENGTHS = st.lists(st.integers(2, 50), max_size=40)
LAYOUTS = st.builds(BatchLayout, st.sampled_from(["padded", "packed"]), st.integers(1, 120))


@given(lengths=LENGTHS, ranks=st.integers(1, 5), layout=LAYOUTS)
def test_every_sequence_has_one_rank_and_ranks_have_equal_micro_batches(lengths, ranks, layout):
    found = split_over_ranks(lengths, ranks, layout)
    assert len(found) == ranks
    assert len({len(groups) for groups in found}) == 1
    assert sorted(index for groups in found for group in groups for index in group) == list(range(len(lengths)))
    assert found == split_over_ranks(lengths, ranks, layout)
    # Where a rank has less than the others, it waits at the end and not in between.
    for groups in found:
        assert [bool(group) for group in groups] == sorted((bool(group) for group in groups), reverse=True)


@given(lengths=LENGTHS, ranks=st.integers(1, 5), layout=LAYOUTS)
def test_micro_batches_keep_the_token_budget(lengths, ranks, layout):
    for group in (group for groups in split_over_ranks(lengths, ranks, layout) for group in groups if len(group) > 1):
        own = [lengths[index] for index in group]
        assert (sum(own) if layout.kind == "packed" else max(own) * len(own)) <= layout.tokens


@given(lengths=st.lists(st.integers(2, 50), min_size=1, max_size=40), ranks=st.integers(1, 5))
def test_ranks_get_nearly_equal_work(lengths, ranks):
    loads = [
        sum(lengths[index] for group in groups for index in group)
        for groups in split_over_ranks(lengths, ranks, BatchLayout("packed", 9))
    ]
    assert max(loads) - min(loads) <= max(lengths)


def test_longest_sequence_goes_to_the_least_loaded_rank():
    assert split_over_ranks([5, 9, 4, 6], 2, BatchLayout("packed", 100)) == [[[1, 2]], [[3, 0]]]


def test_packing_is_first_fit():
    assert BatchLayout("packed", 10).groups([3, 9, 6, 1, 12]) == [[4], [1, 3], [2, 0]]


def test_rank_without_work_gets_dummy_micro_batches(kit):
    experience = kit.experience(kit.rows(1))
    own, other = (
        build_batches(experience, np.arange(1), BatchLayout("packed", 100), device=CPU, rank=rank, ranks=2)
        for rank in (0, 1)
    )
    assert [batch.dummy for batch in own] == [False]
    assert [batch.dummy for batch in other] == [True]
    assert len(other[0].source) == 0
    assert other[0].ids.tolist() == own[0].ids[:, :2].tolist()


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(rows=st.integers(1, 12), ranks=st.integers(1, 4), layout=LAYOUTS, seed=st.integers(0, 9))
def test_every_sampled_token_is_predicted_once(kit, rows, ranks, layout, seed):
    experience = kit.experience(kit.rows(rows, seed))
    seen = []
    for rank in range(ranks):
        for batch in build_batches(experience, np.arange(rows), layout, device=CPU, rank=rank, ranks=ranks):
            if batch.dummy:
                continue
            seen.extend(batch.source.tolist())
            flat = batch.ids.flatten()
            assert flat[batch.predicting + 1].tolist() == batch.targets.tolist()
            assert experience.tokens[batch.source].tolist() == batch.targets.tolist()
    assert sorted(seen) == list(range(len(experience.tokens)))


def scorer(folder: str) -> LogprobModel:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    return LogprobModel(model, torch.nn.Linear(model.config.hidden_size, 1))


def experience_of_turns(kit):
    """Rows of several lengths and temperatures; some go on from earlier ones and are joined."""
    rows = kit.rows(5) + kit.rows(2, seed=1, temperature=0.7)
    first = rows[0]
    later = kit.Row([*first.prompt, *first.tokens, 7, 8, 9], [10, 11, 12], trajectory=first.trajectory)
    return kit.experience([*rows, later])


def learned(folder, experience, layout) -> tuple[np.ndarray, np.ndarray, dict[str, torch.Tensor]]:
    """Log-probabilities, values, and the gradient of a function of both."""
    module, count = scorer(folder), len(experience.tokens)
    logprobs, values = np.full(count, np.nan, np.float32), np.full(count, np.nan, np.float32)
    factors = torch.from_numpy(np.random.default_rng(0).normal(size=count).astype(np.float32))
    for batch in build_batches(experience, np.arange(len(experience.reward)), layout, device=CPU):
        one, value, _ = module(batch)
        ((one + 0.1 * value.square()) * factors[batch.source]).sum().backward()
        logprobs[batch.source], values[batch.source] = one.detach().numpy(), value.detach().numpy()
    return logprobs, values, {name: weight.grad for name, weight in module.weights().items()}


@pytest.mark.parametrize(
    "layout", [BatchLayout("packed", 10_000), BatchLayout("packed", 90), BatchLayout("padded", 10_000)], ids=str
)
def test_layouts_equal_single_sequences(model, kit, layout):
    experience = experience_of_turns(kit)
    expected = learned(model, experience, BatchLayout("padded", 1))
    found = learned(model, experience, layout)
    np.testing.assert_allclose(found[0], expected[0], atol=1e-5)
    np.testing.assert_allclose(found[1], expected[1], atol=1e-5)
    scale = max(tensor.abs().max().item() for tensor in expected[2].values())
    for name, gradient in expected[2].items():
        np.testing.assert_allclose(found[2][name], gradient, rtol=0, atol=3e-6 * scale, err_msg=name)


@pytest.mark.parametrize("entropy", [False, True])
def test_module_calls_do_not_depend_on_the_batch(model, kit, monkeypatch, entropy):
    """Learners of sharded weights gather a module's at each of its calls, all ranks together: a call more on one of
    them, forward or backward, would wait for ever."""
    monkeypatch.setattr(output_head, "head_rows", lambda vocabulary: 4)
    module, calls = scorer(model), []
    for name, part in module.named_modules():
        part.register_forward_pre_hook(lambda *_, name=name: calls.append(name))
    seen = []
    for lengths in ([40], [1], [3, 4, 5, 6]):
        rows = [kit.Row([3, 4, 5], [7] * length, trajectory=number) for number, length in enumerate(lengths)]
        (batch,) = build_batches(kit.experience(rows), np.arange(len(rows)), BatchLayout("packed", 100), device=CPU)
        predictions = module(batch, entropy=entropy)
        torch.stack([prediction.sum() for prediction in predictions if prediction is not None]).sum().backward()
        seen.append(calls.copy())
        calls.clear()
    assert seen[0] == seen[1] == seen[2]


@pytest.mark.parametrize(
    "wrong",
    [{"attention_mask": "ones"}, {"use_cache": True}, {"position_ids": None}],
    ids=lambda pair: next(iter(pair)),
)
def test_packed_sequences_mix_with_a_cache_or_mask(qwen3, kit, monkeypatch, wrong):
    """A mask of ones, a cache, or positions that go on: none is an error, and all give other log-probabilities."""
    experience = kit.experience(kit.rows(5))
    expected, _, _ = learned(qwen3, experience, BatchLayout("padded", 1))
    real = AutoModelForCausalLM.from_pretrained(qwen3).base_model.__class__.forward

    def asked_wrongly(self, input_ids, **kwargs):
        kwargs |= {"attention_mask": torch.ones_like(input_ids)} if "attention_mask" in wrong else wrong
        return real(self, input_ids=input_ids, **kwargs)

    monkeypatch.setattr("transformers.models.qwen3.modeling_qwen3.Qwen3Model.forward", asked_wrongly)
    found, _, _ = learned(qwen3, experience, BatchLayout("packed", 10_000))
    assert np.abs(found - expected).max() > 0.1


def test_a_model_that_mixes_sequences_is_refused(qwen3, monkeypatch):
    model = AutoModelForCausalLM.from_pretrained(qwen3).eval()
    check_model(model, BatchLayout("packed", 100), model_name="tiny")
    real = model.base_model.__class__.forward

    def masked(self, input_ids, **kwargs):
        return real(self, input_ids=input_ids, **{**kwargs, "attention_mask": torch.ones_like(input_ids)})

    monkeypatch.setattr("transformers.models.qwen3.modeling_qwen3.Qwen3Model.forward", masked)
    check_model(model, BatchLayout("padded", 100), model_name="tiny")
    with pytest.raises(ModelError, match=r"tiny: this qwen3 model does not keep sequences apart"):
        check_model(model, BatchLayout("packed", 100), model_name="tiny")


def test_a_model_that_scales_its_logits_is_refused(qwen3, monkeypatch):
    model = AutoModelForCausalLM.from_pretrained(qwen3).eval()
    real = model.forward

    def scaled(**kwargs):
        output = real(**kwargs)
        output.logits = 2.0 * output.logits
        return output

    monkeypatch.setattr(model, "forward", scaled)
    with pytest.raises(ModelError, match="after its output head"):
        check_model(model, BatchLayout("padded", 100), model_name="tiny")
