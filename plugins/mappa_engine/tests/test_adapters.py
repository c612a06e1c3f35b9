"""LoRA policies: adapters that share one base, in the embedded engine and as folders."""

import asyncio
import copy
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from mappa_core import Advantages, RunError, Sampling
from mappa_core.engine import Lora, PolicySpec, TrainSection
from mappa_engine.adapters import Adapters, save_adapter
from mappa_engine.checkpoint import WEIGHTS_FILE
from mappa_engine.errors import ModelError
from mappa_engine.losses import PPOLoss
from mappa_engine.options import PPOOptions

TRAIN = TrainSection(iterations=10, learning_rate=1e-2, minibatch_rows=3)
LORA = Lora(rank=4, alpha=8.0)
PROMPT = np.arange(5, 25, dtype=np.int32)
AGENTS = ("solver", "coder", "judge")


def adapter_of(name: str, model: str, **fields) -> PolicySpec:
    return PolicySpec(name=name, model=model, kind="lora", lora=LORA, **fields)


def rows_of(kit: SimpleNamespace, names, seed: int):
    """Rows of these policies; those of one policy are the same whoever else has rows."""
    rows = [row for at, name in enumerate(AGENTS) if name in names for row in kit.rows(5, 10 * seed + at, policy=name)]
    return kit.experience([_with_trajectory(row, index) for index, row in enumerate(rows)], tuple(names))


def _with_trajectory(row, index: int):
    return type(row)(**{**vars(row), "trajectory": index})


async def learn(engine, kit, names, iteration: int) -> None:
    scored = await engine.score(rows_of(kit, names, iteration))
    drawn = {name: np.random.default_rng([iteration, *name.encode()]) for name in names}
    advantages = np.zeros(len(scored.tokens), np.float32)
    for index, name in enumerate(scored.policies):
        own = scored.policy[scored.row_of_token] == index
        advantages[own] = drawn[name].normal(size=int(own.sum()))
    await engine.update(scored, Advantages(advantages=advantages), PPOLoss(PPOOptions()), iteration / 10)
    await engine.publish()


async def weights_of(engine, folder, name: str) -> dict[str, torch.Tensor]:
    await engine.save(folder)
    return load_file(folder / name / WEIGHTS_FILE)


def logprobs_of(model, tokens) -> np.ndarray:
    with torch.inference_mode():
        logits = model(torch.tensor(np.asarray(tokens, np.int64))[None]).logits[0].float()
    return torch.log_softmax(logits, -1).numpy()


@pytest.fixture
def base(model):
    return AutoModelForCausalLM.from_pretrained(model).eval()


def test_new_adapter_is_neutral_and_depends_on_seed_and_name(model, base):
    ids = torch.arange(30)[None]
    plain, names = base(ids).logits, list(dict(base.named_parameters()))
    adapters = Adapters(base, model_name=model)
    torch.manual_seed(5)
    adapters.add("a.b", LORA, seed=1)
    drawn_after = torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(drawn_after, torch.rand(1))  # nobody else's randomness is used
    with adapters.active("a.b"):
        assert torch.equal(base(ids).logits, plain)
    other = Adapters(AutoModelForCausalLM.from_pretrained(model), model_name=model)
    other.add("z", LORA, seed=1)
    other.add("a.b", LORA, seed=1)
    for name, weight in adapters.parameters("a.b").items():
        assert torch.equal(weight, other.parameters("a.b")[name]), name
        assert torch.equal(weight, other.parameters("z")[name]) is name.endswith("lora_B.weight")
    assert list(adapters.base()) == names


def test_only_the_active_adapter_has_a_gradient(model, base):
    ids = torch.arange(30)[None]
    plain = base(ids).logits
    adapters = Adapters(base, model_name=model)
    for name in ("a", "b"):
        adapters.add(name, LORA, seed=1)
        torch.nn.init.normal_(adapters.parameters(name)[next(reversed(adapters.parameters(name)))])
    with adapters.active("a"):
        first = base(ids).logits
        with adapters.active(None):
            assert torch.equal(base(ids).logits, plain)
            with adapters.active("b"):
                assert not torch.equal(base(ids).logits, first)
        again = base(ids).logits
    assert torch.equal(first, again)
    assert not torch.equal(first, plain)
    again.square().sum().backward()
    assert all(weight.grad is not None for weight in adapters.parameters("a").values())
    assert all(weight.grad is None for weight in adapters.parameters("b").values())
    assert all(weight.grad is None for weight in adapters.base().values())
    assert torch.equal(base(ids).logits, plain)


def test_adapter_targets_are_existing_layers_without_the_head(model, base):
    adapters = Adapters(base, model_name=model)
    adapters.add("some", Lora(rank=2, alpha=2.0, targets=("q_proj", "up_proj")), seed=0)
    assert {name.split(".")[-3] for name in adapters.parameters("some")} == {"q_proj", "up_proj"}
    adapters.add("all", LORA, seed=0)
    assert not any("lm_head" in name or "embed" in name for name in adapters.parameters("all"))
    with pytest.raises(ModelError, match=r"names kproj, lm_head, .* it has down_proj, gate_proj, k_proj"):
        adapters.add("none", Lora(rank=2, alpha=2.0, targets=("kproj", "lm_head")), seed=0)


@pytest.mark.parametrize("rslora", [False, True])
def test_peft_loads_a_written_adapter(model, base, tmp_path, rslora):
    lora = Lora(rank=4, alpha=6.0, rslora=rslora)
    adapters = Adapters(base, model_name=model)
    adapters.add("solver", lora, seed=0)
    with torch.no_grad():
        for weight in adapters.parameters("solver").values():
            weight.normal_(std=0.2)
    save_adapter(adapters.parameters("solver"), lora, tmp_path / "adapter", base=model)
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["use_rslora"]) == (4, 6.0, rslora)
    assert config["base_model_name_or_path"] == model
    loaded = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(model), tmp_path / "adapter")
    with adapters.active("solver"):
        expected = logprobs_of(base, PROMPT)
    assert np.abs(logprobs_of(loaded, PROMPT) - expected).max() < 1e-5
    assert np.abs(logprobs_of(AutoModelForCausalLM.from_pretrained(model), PROMPT) - expected).max() > 0.1


async def test_adapters_share_one_base(qwen3, opened):
    engine = await opened(qwen3, train=TRAIN, policies=[adapter_of(name, qwen3) for name in AGENTS])
    policies = [engine._policies[name] for name in AGENTS]
    one = {tensor.untyped_storage().data_ptr() for tensor in policies[0].base.adapters.base().values()}
    held = {tensor.untyped_storage().data_ptr() for policy in policies for tensor in policy.model.parameters()}
    adapters = [len(policy.base.adapters.parameters(policy.name)) for policy in policies]
    assert len(held) == len(one) + sum(adapters)
    assert len({id(policy.model) for policy in policies}) == 1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_adapters_on_one_base_learn_independently(model, opened, kit, tmp_path, dtype):
    together = await opened(model, train=TRAIN, policies=[adapter_of(name, model) for name in AGENTS], dtype=dtype)
    for iteration in range(3):
        await learn(together, kit, AGENTS, iteration)
    await together.save(tmp_path / "together")
    for name in AGENTS:
        alone = await opened(model, train=TRAIN, policies=[adapter_of(name, model)], dtype=dtype)
        start = await weights_of(alone, tmp_path / f"start-{name}", name)
        for iteration in range(3):
            await learn(alone, kit, (name,), iteration)
        expected = await weights_of(alone, tmp_path / f"alone-{name}", name)
        found = load_file(tmp_path / "together" / name / WEIGHTS_FILE)
        assert all(torch.equal(found[key], expected[key]) for key in expected)
        assert all(not torch.equal(start[key], expected[key]) for key in expected)
        assert {tensor.dtype for tensor in found.values()} == {torch.float32}


async def test_full_lora_and_frozen_policies_work_together(model, opened, kit):
    """A full policy, an adapter and a frozen policy of one model: each is what it is, while steps interleave."""
    specs = [PolicySpec(name="solver", model=model), adapter_of("coder", model)]
    specs.append(PolicySpec(name="judge", model=model, kind="frozen"))
    engine = await opened(model, train=TRAIN, policies=specs)
    base = AutoModelForCausalLM.from_pretrained(model).eval()
    for iteration in range(3):
        await learn(engine, kit, AGENTS[:2], iteration)
    found = await asyncio.gather(
        *(
            engine.sampler(name).sample(PROMPT[: 8 + turn], Sampling(max_tokens=10, seed=turn))
            for turn in range(4)
            for name in AGENTS
        )
    )
    for at, completion in enumerate(found):
        logprobs = logprobs_of(base, [*completion.prompt_tokens, *completion.tokens])[
            len(completion.prompt_tokens) - 1 : -1
        ]
        gap = np.abs(logprobs[np.arange(len(completion.tokens)), completion.tokens] - completion.logprobs).max()
        assert gap < 1e-4 if AGENTS[at % 3] == "judge" else gap > 1e-2, AGENTS[at % 3]
    rows = [
        kit.Row(completion.prompt_tokens, completion.tokens, completion.logprobs, trajectory=at, policy=AGENTS[at % 3])
        for at, completion in enumerate(found)
        if at % 3 < 2
    ]
    scored = await engine.score(kit.experience(rows, AGENTS[:2]))
    assert np.abs(scored.old_logprobs - scored.logprobs).max() < 1e-4
    for row, (start, end) in zip(rows, zip(scored.offsets, scored.offsets[1:], strict=False), strict=False):
        expected = logprobs_of(base, [*row.prompt, *row.tokens])[len(row.prompt) - 1 : -1]
        expected = expected[np.arange(len(row.tokens)), row.tokens]
        assert np.abs(scored.ref_logprobs[start:end] - expected).max() < 1e-4


async def test_resumed_adapter_is_bit_equal(model, opened, kit, tmp_path):
    specs = [adapter_of("solver", model, value_head=True)]
    one, other = [await opened(model, train=TRAIN, policies=specs) for _ in range(2)]
    for iteration in range(4):
        await learn(one, kit, ("solver",), iteration)
    for iteration in range(2):
        await learn(other, kit, ("solver",), iteration)
    await other.save(tmp_path / "policies")
    names = load_file(tmp_path / "policies" / "solver" / WEIGHTS_FILE)
    assert all(".lora_" in name or name.startswith("value_head.") for name in names)
    resumed = await opened(model, train=TRAIN, policies=specs)
    await resumed.load(tmp_path / "policies")
    for iteration in (2, 3):
        await learn(resumed, kit, ("solver",), iteration)
    assert (await resumed.publish())["solver"] == (await one.publish())["solver"]


@pytest.mark.parametrize("kind", ["full", "lora"])
async def test_policy_starts_with_weights_of_another(qwen3, opened, kit, tmp_path, kind):
    def spec(name: str, **fields):
        return PolicySpec(name=name, model=qwen3, kind=kind, lora=LORA if kind == "lora" else None, **fields)

    first = await opened(qwen3, train=TRAIN, policies=[spec("solver", value_head=True)])
    await learn(first, kit, ("solver",), 0)
    trained = await weights_of(first, tmp_path / "first", "solver")
    start = tmp_path / "first" / "solver"
    second = await opened(qwen3, train=TRAIN, policies=[spec("coder", start=start)])
    begun = await weights_of(second, tmp_path / "second", "coder")
    assert begun and all(torch.equal(tensor, trained[name]) for name, tensor in begun.items())
    assert not any(name.startswith("value_head.") for name in begun)
    state = json.loads((tmp_path / "second" / "coder" / "state.json").read_text())
    assert state == {"version": 0, "steps": 0}
    assert (await second.publish())["coder"].version == 1
    if kind == "lora":
        with pytest.raises(RunError, match=r"differs \(28 tensors in all\)"):
            wide = PolicySpec(name="coder", model=qwen3, kind="lora", lora=Lora(rank=8, alpha=8.0), start=start)
            await opened(qwen3, train=TRAIN, policies=[wide])


async def test_exported_adapter_equals_the_sampled_one(qwen3, opened, kit, tmp_path):
    specs = [adapter_of("solver", qwen3), PolicySpec(name="judge", model=qwen3, kind="frozen")]
    engine = await opened(qwen3, train=TRAIN, policies=specs)
    await learn(engine, kit, ("solver",), 0)
    await engine.save(tmp_path / "saved")
    engine.export(specs[0], tmp_path / "saved/solver", tmp_path / "solver", merged=False, dtype=None)
    frozen = AutoModelForCausalLM.from_pretrained(qwen3).eval()
    one = await engine.sampler("solver").sample(PROMPT, Sampling(max_tokens=10, seed=0))
    loaded = PeftModel.from_pretrained(frozen, tmp_path / "solver")
    logprobs = logprobs_of(loaded, [*PROMPT, *one.tokens])[len(PROMPT) - 1 : -1]
    assert np.abs(logprobs[np.arange(len(one.tokens)), one.tokens] - one.logprobs).max() < 1e-4


def test_adapters_of_a_bfloat16_base_compute_in_it_and_are_rounded_anew_after_a_step(model):
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)
    cast, plain = (Adapters(own, model_name=model, autocast=own is base) for own in (base, copy.deepcopy(base)))
    ids = torch.arange(9)[None]
    outputs = []
    for adapters in (cast, plain):
        adapters.add("solver", Lora(rank=4, alpha=8.0), seed=0)
        random = torch.Generator().manual_seed(0)
        with adapters.active("solver"):
            for _ in range(2):
                outputs.append(adapters._model(input_ids=ids).logits.detach().float())
                with torch.no_grad():
                    for weight in adapters.parameters("solver").values():
                        assert weight.dtype == torch.float32
                        weight.add_(0.1 * torch.randn(weight.shape, generator=random))
            outputs.append(adapters._model(input_ids=ids).logits.detach().float())
    for found, expected in zip(outputs[:3], outputs[3:], strict=True):
        torch.testing.assert_close(found, expected, atol=0.3, rtol=0.05)
    assert (outputs[0] - outputs[1]).abs().max() > 1.0 < (outputs[1] - outputs[2]).abs().max()
