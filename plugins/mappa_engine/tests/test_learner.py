"""The learner against plain torch, and everything that must not change a gradient."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM

from mappa_core import Advantages
from mappa_core.engine import CorrectionSection, EngineError, PolicySpec, TrainSection
from mappa_engine.learning import output_head
from mappa_engine.losses import PPOLoss
from mappa_engine.options import PPOOptions

LOSS = PPOLoss(PPOOptions(kl="k3", kl_coef=0.1))
TRAIN = TrainSection(iterations=10, learning_rate=1e-3, grad_clip=1e9, correction=CorrectionSection(kind="none"))


def advantages(experience, seed: int = 0) -> Advantages:
    drawn = np.random.default_rng(seed).normal(size=len(experience.tokens)).astype(np.float32)
    return Advantages(advantages=drawn * (experience.token_weight > 0))


async def gradient(engine, experience, folder, given=None, progress=0.0) -> dict[str, np.ndarray]:
    """The gradient of one step on fresh moments, read from AdamW's first moment."""
    scored = await engine.score(experience)
    await engine.update(scored, given or advantages(scored), LOSS, progress)
    await engine.save(folder)
    moments = load_file(folder / "solver" / "optimiser.safetensors")
    share = 1.0 - TRAIN.betas[0]
    return {
        name.removeprefix("exp_avg."): moment / share for name, moment in moments.items() if name.startswith("exp_avg.")
    }


def assert_same_gradient(found, expected, tolerance=1e-6) -> None:
    assert found.keys() == expected.keys()
    scale = max(np.abs(tensor).max() for tensor in expected.values())
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=tolerance * scale, err_msg=name)


def plain_logprobs(model, experience, row: int) -> torch.Tensor:
    """Log-probabilities of one row's action by the model's own forward, alone and without padding."""
    prompt = experience.prompt_tokens[experience.prompt_offsets[row] : experience.prompt_offsets[row + 1]]
    action = experience.tokens[experience.offsets[row] : experience.offsets[row + 1]]
    ids = torch.from_numpy(np.concatenate([prompt, action]).astype(np.int64))[None]
    temperature = float(experience.temperature[row]) or 1.0
    logits = model(input_ids=ids).logits[0, len(prompt) - 1 : -1] / temperature
    return torch.log_softmax(logits, -1).gather(1, ids[0, len(prompt) :, None])[:, 0]


def plain_entropy(model, experience, row: int) -> torch.Tensor:
    """The mean entropy of one row's tokens, by the model's own forward and the definition."""
    prompt = experience.prompt_tokens[experience.prompt_offsets[row] : experience.prompt_offsets[row + 1]]
    action = experience.tokens[experience.offsets[row] : experience.offsets[row + 1]]
    ids = torch.from_numpy(np.concatenate([prompt, action]).astype(np.int64))[None]
    logits = model(input_ids=ids).logits[0, len(prompt) - 1 : -1]
    logprobs = torch.log_softmax(logits / float(experience.temperature[row]), -1)
    return -(logprobs.exp() * logprobs).sum(-1)


def plain_gradient(folder, scored, given) -> dict[str, np.ndarray]:
    """The loss written out row by row."""
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    total, weights = torch.zeros(()), 0.0
    for row in np.flatnonzero(scored.weight > 0):
        part, weight = slice(scored.offsets[row], scored.offsets[row + 1]), float(scored.weight[row])
        new = plain_logprobs(model, scored, row)
        advantage = torch.from_numpy(given.advantages[part])
        ratio = torch.exp(new - torch.from_numpy(scored.old_logprobs[part]))
        surrogate = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        gap = torch.from_numpy(scored.ref_logprobs[part]) - new
        total = total + weight * (-surrogate + 0.1 * (gap.exp() - 1 - gap)).sum()
        weights += weight * len(new)
    (total / weights).backward()
    return {name: parameter.grad.numpy() for name, parameter in model.named_parameters()}


async def test_logprobs_are_those_of_the_model_itself(model, opened, kit):
    engine = await opened(model, train=TRAIN)
    rows = kit.rows(5) + kit.rows(3, seed=1, temperature=0.7) + kit.rows(2, seed=2, temperature=0.0)
    scored = await engine.score(kit.experience(rows))
    plain = AutoModelForCausalLM.from_pretrained(model).eval()
    with torch.inference_mode():
        expected = torch.cat([plain_logprobs(plain, scored, row) for row in range(len(rows))]).numpy()
    np.testing.assert_allclose(scored.old_logprobs, expected, atol=1e-5)
    np.testing.assert_allclose(scored.ref_logprobs, expected, atol=1e-5)
    assert scored.values is None


async def test_gradient_matches_plain_torch(model, opened, kit, tmp_path):
    rows = kit.rows(4) + kit.rows(3, seed=1, weight=0.5, temperature=0.7)
    engine = await opened(model, train=TRAIN)
    scored = await engine.score(kit.experience(rows))
    expected = plain_gradient(model, scored, advantages(scored))
    assert_same_gradient(await gradient(engine, scored, tmp_path / "ours"), expected, 1e-5)


MEANS = {"token": {}, "sequence": {"mean": "sequence"}, "fixed": {"mean": "fixed", "mean_length": 50}}


@pytest.mark.parametrize("mean", MEANS)
async def test_means_and_entropy_bonus_match_plain_torch(qwen3, opened, kit, mean):
    """Of each mean with a bonus on top, by hand; a head in one piece and in chunks, in micro-batches."""
    rows = kit.rows(4, temperature=0.7) + kit.rows(2, seed=1, weight=0.5)
    train = replace(TRAIN, entropy_coef=0.2, micro_tokens=60, **MEANS[mean])
    engine = await opened(qwen3, train=train)
    scored = await engine.score(kit.experience(rows))
    given, plain = advantages(scored), AutoModelForCausalLM.from_pretrained(qwen3).eval()
    with torch.inference_mode():
        entropies = [plain_entropy(plain, scored, row) for row in range(6)]
    sums = [
        sum(-given.advantages[scored.offsets[row] : scored.offsets[row + 1]]) - 0.2 * entropies[row].sum().item()
        for row in range(6)
    ]
    weight, lengths = scored.weight, scored.lengths
    divisor = {"token": (weight * lengths).sum(), "sequence": weight.sum(), "fixed": 50 * weight.sum()}[mean]
    shares = np.array(sums) / lengths if mean == "sequence" else np.array(sums)
    expected = (weight * shares).sum()
    metrics = (await engine.update(scored, given, LOSS, 0.0))["solver"]
    assert metrics["loss"] == pytest.approx(expected / divisor, rel=1e-4)
    assert metrics["entropy_full"] == pytest.approx(torch.cat(entropies).mean().item(), rel=1e-5)


async def test_entropy_gradient_matches_plain_torch(model, opened, kit, tmp_path, monkeypatch):
    experience = kit.experience(kit.rows(4, temperature=0.7))
    nothing = Advantages(advantages=np.zeros(len(experience.tokens), np.float32))
    plain = AutoModelForCausalLM.from_pretrained(model).eval()
    (-0.2 * torch.cat([plain_entropy(plain, experience, row) for row in range(4)]).mean()).backward()
    expected = {name: parameter.grad.numpy() for name, parameter in plain.named_parameters()}
    train = replace(TRAIN, entropy_coef=0.2)
    for rows in (1024, 7):
        monkeypatch.setattr(output_head, "head_rows", lambda vocabulary, rows=rows: rows)
        engine = await opened(model, train=train)
        found = await gradient(engine, experience, tmp_path / str(rows), nothing)
        assert_same_gradient(found, expected, 1e-5)


async def test_row_of_weight_zero_is_in_no_mean(qwen3, opened, kit):
    for mean in MEANS.values():
        losses = []
        for dead in ([], kit.rows(3, seed=9, weight=0.0)):
            engine = await opened(qwen3, train=replace(TRAIN, entropy_coef=0.1, **mean))
            scored = await engine.score(kit.experience(kit.rows(4) + dead))
            given = np.where(scored.token_weight > 0, np.float32(0.5), np.float32(np.nan))
            losses.append((await engine.update(scored, Advantages(advantages=given), LOSS, 0.0))["solver"]["loss"])
        assert losses[0] == losses[1]


@pytest.mark.parametrize("micro_tokens", [1, 60, 200])
async def test_micro_batches_do_not_change_the_gradient(qwen3, opened, kit, tmp_path, micro_tokens):
    experience = kit.experience(kit.rows(12))
    whole = await gradient(await opened(qwen3, train=TRAIN), experience, tmp_path / "whole")
    parts = await gradient(
        await opened(qwen3, train=replace(TRAIN, micro_tokens=micro_tokens)), experience, tmp_path / "parts"
    )
    assert_same_gradient(parts, whole)


async def test_joined_rows_do_not_change_the_gradient(qwen3, opened, kit, tmp_path):
    random = np.random.default_rng(3)
    joined, apart = [], []
    for trajectory in range(4):
        prompt = random.integers(3, 259, 12).tolist()
        for turn in range(3):
            tokens = random.integers(3, 259, random.integers(2, 9)).tolist()
            joined.append(kit.Row(prompt, tokens, trajectory=trajectory))
            apart.append(kit.Row(prompt, tokens, trajectory=3 * trajectory + turn))
            prompt = [*prompt, *tokens, *random.integers(3, 259, 5).tolist()]
    one = await gradient(await opened(qwen3, train=TRAIN), kit.experience(joined), tmp_path / "joined")
    other = await gradient(await opened(qwen3, train=TRAIN), kit.experience(apart), tmp_path / "apart")
    assert_same_gradient(one, other)


async def test_a_head_in_chunks_does_not_change_the_gradient(model, opened, kit, tmp_path, monkeypatch):
    experience = kit.experience(kit.rows(6, temperature=0.8))
    whole = await gradient(await opened(model, train=TRAIN), experience, tmp_path / "whole")
    monkeypatch.setattr(output_head, "head_rows", lambda vocabulary: 7)
    chunked = await gradient(await opened(model, train=TRAIN), experience, tmp_path / "chunked")
    assert_same_gradient(chunked, whole)


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(places=st.lists(st.integers(0, 8), min_size=1, max_size=5), minibatch=st.sampled_from([None, 3]))
async def test_rows_of_weight_zero_change_nothing(qwen3, opened, kit, places, minibatch):
    train = replace(TRAIN, minibatch_rows=minibatch, micro_tokens=100)
    live = [replace(row, trajectory=index // 2) for index, row in enumerate(kit.rows(8))]
    dead = [replace(row, trajectory=place // 2, weight=0.0) for row, place in zip(kit.rows(5, 9), places, strict=False)]
    mixed = list(live)
    for row, place in zip(dead, sorted(places, reverse=True), strict=True):
        mixed.insert(place, row)
    keep = np.repeat([row.weight > 0 for row in mixed], [len(row.tokens) for row in mixed])
    results = []
    for rows in (live, mixed):
        engine = await opened(qwen3, train=train)
        scored = await engine.score(kit.experience(rows))
        given = np.full(len(scored.tokens), np.nan, np.float32)
        alive = scored.token_weight > 0
        given[alive] = np.random.default_rng(0).normal(size=alive.sum())
        metrics = await engine.update(scored, Advantages(advantages=given), LOSS, 0.0)
        results.append((scored, metrics, (await engine.publish())["solver"].checksum))
    assert results[0][1:] == results[1][1:]
    assert results[1][0].old_logprobs[keep].tobytes() == results[0][0].old_logprobs.tobytes()
    assert np.isfinite(results[1][0].old_logprobs).all()


async def test_a_policy_without_live_rows_keeps_its_weights(qwen3, opened, kit):
    engine = await opened(qwen3, train=TRAIN)
    before = (await engine.publish())["solver"].checksum
    scored = await engine.score(kit.experience(kit.rows(3, weight=0.0)))
    metrics = await engine.update(scored, advantages(scored), LOSS, 0.0)
    assert metrics == {"solver": {"rows": 0.0, "steps": 0.0, "tokens": 0.0, "skipped": 0.0}}
    assert (await engine.publish())["solver"].checksum == before


async def test_steps_count_minibatches_and_epochs(qwen3, opened, kit):
    train = replace(TRAIN, minibatch_rows=3, epochs=2, schedule="linear")
    engine = await opened(qwen3, train=train)
    scored = await engine.score(kit.experience(kit.rows(7)))
    metrics = (await engine.update(scored, advantages(scored), LOSS, 0.2))["solver"]
    assert metrics["steps"] == 6
    # Iteration 2 of 10, the last of its six steps: 2 + 5/6 iterations done.
    assert metrics["lr"] == pytest.approx(1e-3 * (1 - (2 + 5 / 6) / 10))


async def test_row_order_depends_on_seed_and_iteration(qwen3, opened, kit):
    train = replace(TRAIN, minibatch_rows=2)

    async def checksum(seed: int, progress: float) -> str:
        engine = await opened(qwen3, train=train, seed=seed)
        scored = await engine.score(kit.experience(kit.rows(8)))
        await engine.update(scored, advantages(scored), LOSS, progress)
        return (await engine.publish())["solver"].checksum

    assert await checksum(0, 0.1) == await checksum(0, 0.1)
    assert len({await checksum(0, 0.1), await checksum(0, 0.2), await checksum(1, 0.1)}) == 3


async def test_the_gradient_is_clipped_to_its_norm(qwen3, opened, kit, tmp_path):
    experience = kit.experience(kit.rows(5))
    clipped = await gradient(await opened(qwen3, train=replace(TRAIN, grad_clip=0.5)), experience, tmp_path / "a")
    assert np.sqrt(sum((tensor**2).sum() for tensor in clipped.values())) == pytest.approx(0.5, rel=1e-4)


async def test_metrics_are_means_over_sampled_tokens(qwen3, opened, kit):
    engine = await opened(qwen3, train=TRAIN)
    scored = await engine.score(kit.experience(kit.rows(5)))
    shifted = replace(scored, logprobs=scored.old_logprobs + np.float32(0.25))
    metrics = (await engine.update(shifted, advantages(scored), LOSS, 0.0))["solver"]
    assert metrics["tokens"] == len(scored.tokens)
    assert metrics["rows"] == 5
    assert metrics["ratio_mean"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["ratio_max"] == pytest.approx(1.0, abs=1e-4)
    assert metrics["clip_share"] == metrics["clip_share_low"] == metrics["clip_share_high"] == 0.0
    assert "entropy_full" not in metrics
    assert metrics["kl"] == pytest.approx(0.0, abs=1e-6)
    assert metrics["entropy"] == pytest.approx(-scored.old_logprobs.mean(), rel=1e-5)
    assert metrics["mismatch_max"] == pytest.approx(0.25, abs=1e-5)
    assert metrics["mismatch_mean"] == pytest.approx(0.25, abs=1e-5)
    assert metrics["loss"] == pytest.approx(-advantages(scored).advantages.mean(), rel=1e-4)


async def test_advantaged_tokens_become_likelier(qwen3, opened, kit):
    engine = await opened(qwen3, train=replace(TRAIN, learning_rate=1e-2, epochs=3))
    scored = await engine.score(kit.experience(kit.rows(6)))
    sign = np.where(scored.row_of_token % 2 == 0, 1.0, -1.0).astype(np.float32)
    await engine.update(scored, Advantages(advantages=sign), LOSS, 0.0)
    moved = (await engine.score(scored)).old_logprobs - scored.old_logprobs
    assert moved[sign > 0].mean() > 0 > moved[sign < 0].mean()


async def test_update_changes_neither_reference_nor_other_policies(qwen3, opened, kit):
    specs = [PolicySpec(name=name, model=qwen3) for name in ("solver", "coder")]
    engine = await opened(qwen3, train=replace(TRAIN, learning_rate=1e-2), policies=specs)
    rows = kit.rows(4, policy="solver") + kit.rows(4, policy="coder", weight=0.0)
    scored = await engine.score(kit.experience(rows, ("solver", "coder")))
    metrics = await engine.update(scored, advantages(scored), LOSS, 0.0)
    assert metrics["coder"]["steps"] == 0
    again = await engine.score(scored)
    own = scored.row_of_token < 4
    assert again.ref_logprobs.tobytes() == scored.ref_logprobs.tobytes()
    assert again.old_logprobs[~own].tobytes() == scored.old_logprobs[~own].tobytes()
    assert (again.old_logprobs[own] != scored.old_logprobs[own]).all()


async def test_values_start_at_zero_and_learn_their_targets(qwen3, opened, kit):
    specs = [PolicySpec(name="solver", model=qwen3, value_head=True), PolicySpec(name="coder", model=qwen3)]
    engine = await opened(qwen3, train=replace(TRAIN, learning_rate=3e-2), policies=specs)
    rows = kit.rows(4, policy="solver") + kit.rows(4, policy="coder")
    scored = await engine.score(kit.experience(rows, ("solver", "coder")))
    own = scored.row_of_token < 4
    assert (scored.values[own] == 0.0).all()
    assert np.isnan(scored.values[~own]).all()
    given = Advantages(
        advantages=np.zeros(len(scored.tokens), np.float32), value_targets=np.full(len(scored.tokens), 2.0, np.float32)
    )
    metrics = await engine.update(scored, given, LOSS, 0.0)
    assert metrics["solver"]["value_loss"] == pytest.approx(4.0)
    assert "value_explained" not in metrics["solver"]  # all targets are the same
    assert "value_loss" not in metrics["coder"]
    assert np.square((await engine.score(scored)).values[own] - 2.0).mean() < 4.0


async def test_a_policy_whose_estimator_gives_no_targets_learns_beside_one_that_has_them(qwen3, opened, kit):
    """As with estimators by agent, or where every trajectory broke off, after which no return is known."""
    specs = [PolicySpec(name=name, model=qwen3, value_head=True) for name in ("solver", "coder")]
    engine = await opened(qwen3, train=TRAIN, policies=specs)
    scored = await engine.score(kit.experience([*kit.rows(3), *kit.rows(3, policy="coder")], ("solver", "coder")))
    targets = np.where(scored.policy[scored.row_of_token] == 0, 2.0, np.nan).astype(np.float32)
    given = Advantages(advantages=np.ones(len(scored.tokens), np.float32), value_targets=targets)
    metrics = await engine.update(scored, given, LOSS, 0.0)
    assert metrics["solver"]["value_loss"] == pytest.approx(4.0)
    assert metrics["coder"]["steps"] == 1.0
    assert metrics["coder"]["grad_norm"] > 0.0
    assert not {"value_loss", "value_explained"} & metrics["coder"].keys()


async def test_tokens_without_a_target_do_not_train_the_value_head(qwen3, opened, kit):
    """As where one of a policy's agents has an estimator that gives none."""
    specs = [PolicySpec(name="solver", model=qwen3, value_head=True)]
    found = []
    for count in (2, 3):
        engine = await opened(qwen3, train=replace(TRAIN, mean="fixed", mean_length=10), policies=specs)
        scored = await engine.score(kit.experience(kit.rows(count)))
        targets = np.where(scored.row_of_token < 2, np.arange(len(scored.tokens), dtype=np.float32), np.float32(np.nan))
        given = Advantages(advantages=np.zeros(len(scored.tokens), np.float32), value_targets=targets)
        metrics = (await engine.update(scored, given, LOSS, 0.0))["solver"]
        found.append((metrics["value_loss"], metrics["value_explained"], count * metrics["loss"]))
    assert found[1] == pytest.approx(found[0])
    assert found[0][1] == pytest.approx(0.0)  # values are all 0


@pytest.mark.parametrize("column", ["advantages", "gradient"])
async def test_non_finite_step_is_skipped(qwen3, opened, kit, column):
    engine = await opened(qwen3, train=TRAIN)
    scored = await engine.score(kit.experience(kit.rows(4)))
    before = (await engine.publish())["solver"].checksum
    given = advantages(scored)
    given.advantages[0] = np.nan if column == "advantages" else 1e38
    metrics = (await engine.update(scored, given, LOSS, 0.0))["solver"]
    assert (metrics["skipped"], metrics["steps"], metrics["rows"]) == (1.0, 0.0, 4.0)
    assert not {"loss", "grad_norm", "lr", "entropy"} & metrics.keys()
    assert (await engine.publish())["solver"].checksum == before


async def test_steps_after_a_skipped_step_are_unaffected(qwen3, opened, kit):
    """Neither the gradient nor AdamW's moments remember it."""
    train = replace(TRAIN, minibatch_rows=3)
    engine, other = await opened(qwen3, train=train), await opened(qwen3, train=train)
    scored = await engine.score(kit.experience(kit.rows(9)))
    given, broken = advantages(scored), advantages(scored)
    broken.advantages[:] = np.nan
    assert (await engine.update(scored, broken, LOSS, 0.0))["solver"]["skipped"] == 3
    metrics = [(await each_engine.update(scored, given, LOSS, 0.1))["solver"] for each_engine in (engine, other)]
    assert metrics[0] == metrics[1]
    assert metrics[0]["skipped"] == 0
    assert len({(await each_engine.publish())["solver"].checksum for each_engine in (engine, other)}) == 1


async def test_only_the_non_finite_step_is_skipped(qwen3, opened, kit):
    engine = await opened(qwen3, train=replace(TRAIN, minibatch_rows=3))
    scored = await engine.score(kit.experience(kit.rows(9)))
    given = advantages(scored)
    given.advantages[0] = np.nan
    metrics = (await engine.update(scored, given, LOSS, 0.0))["solver"]
    assert (metrics["skipped"], metrics["steps"]) == (1.0, 2.0)
    assert np.isfinite(list(metrics.values())).all()


async def test_a_frozen_policy_is_not_trained(qwen3, opened, kit):
    specs = [PolicySpec(name="solver", model=qwen3, kind="frozen")]
    engine = await opened(qwen3, train=TRAIN, policies=specs)
    scored = await engine.score(kit.experience(kit.rows(2)))
    with pytest.raises(EngineError, match="frozen"):
        await engine.update(scored, advantages(scored), LOSS, 0.0)


async def test_an_engine_for_sampling_does_not_score(qwen3, opened, kit):
    engine = await opened(qwen3)
    with pytest.raises(EngineError, match="sampling only"):
        await engine.score(kit.experience(kit.rows(2)))


async def test_master_weights_keep_steps_too_small_for_bfloat16(qwen3, opened, kit, tmp_path):
    engine = await opened(qwen3, train=replace(TRAIN, learning_rate=1e-6), dtype="bfloat16")
    scored = await engine.score(kit.experience(kit.rows(4)))
    await engine.save(tmp_path / "before")
    await engine.update(scored, advantages(scored), LOSS, 0.0)
    await engine.save(tmp_path / "after")
    name = "model.layers.0.mlp.up_proj.weight"
    before, after = (
        load_file(tmp_path / folder / "solver" / "weights.safetensors")[name] for folder in ("before", "after")
    )
    assert before.dtype == np.float32
    assert 0 < np.abs(after - before).max() < 2e-6


async def test_the_reference_is_left_out_where_nothing_reads_it(qwen3, opened, kit):
    engine, experience = await opened(qwen3, train=TRAIN), kit.experience(kit.rows(4))
    whole, bare = await engine.score(experience), await engine.score(experience, reference=False)
    assert bare.ref_logprobs is None
    np.testing.assert_array_equal(bare.old_logprobs, whole.old_logprobs)
