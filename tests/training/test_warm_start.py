"""Warm starts with a real model: what is learned, by whom, until when, and what a training starts from."""

import hashlib
import json
import math

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from mappa.runs import RunReader
from mappa.sessions import compose
from mappa.testing import load_plugins
from mappa.training import Run, warm_start
from mappa.training.examples import Example, hold_out
from mappa.training.listener import Listener
from mappa.training.warm_start import EXAMPLES, HELD_OUT_LOSS, WarmStart, is_warm_start
from mappa_core import ConfigError, GuardStop, Message
from mappa_engine.checkpoint import WEIGHTS_FILE
from mappa_engine.model_path import resolve_model_path

MODEL = "package:mappa_mathchat/models/tiny"
SETTINGS = (
    "train.iterations=3", "train.minibatch_rows=4", "train.learning_rate=1e-3", "train.correction.kind=none",
    "train.warmup_iterations=0", "checkpoint.every=1", "checkpoint.keep=2", "eval.problems=2", "eval.every=0",
)  # fmt: skip
NUMBERS = range(24)


@pytest.fixture(scope="module")
def registry():
    return load_plugins()


def example(number, agent="verifier"):
    prompt = (Message(role="user", content=f"what is {number} + 1"),)
    return Example(agent=agent, prompt=prompt, reply=f"the answer is {number + 1}")


EXAMPLES_OF_TWO = [example(number, agent) for number in NUMBERS for agent in ("verifier", "code_executor")]


def start(registry, root, name, *settings, examples=EXAMPLES_OF_TWO):
    words = (*SETTINGS, f"run.root={root}", f"run.name={name}", *settings)
    composed = compose(registry, recipe="mathchat/tiny", overrides=words)
    return WarmStart(composed, registry, examples=examples)


@pytest.fixture(scope="module")
def whole(registry, tmp_path_factory):
    return start(registry, tmp_path_factory.mktemp("runs"), "whole").train().folder


def weights(folder, iteration):
    files = sorted((folder / "checkpoints" / f"{iteration:06d}" / "policies").rglob("*.safetensors"))
    return {str(file.parent.name): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def tensors(folder, iteration):
    """The verifier's weights in a checkpoint."""
    return load_file(folder / "checkpoints" / f"{iteration:06d}" / "policies" / "verifier" / WEIGHTS_FILE)


def losses(folder):
    with RunReader(folder) as reader:
        return [{name: metrics[HELD_OUT_LOSS] for name, metrics in report.policies.items() if HELD_OUT_LOSS in metrics}
                for report in reader.iterations]  # fmt: skip


def surprise(examples):
    """Mean -log p of the replies' tokens by transformers alone."""
    folder = resolve_model_path(MODEL)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    total = count = 0
    for given in examples:
        chat = [{"role": message.role, "content": message.content} for message in given.prompt]
        prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)["input_ids"]
        reply = [*tokenizer(given.reply, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
        with torch.no_grad():
            logprobs = model(torch.tensor([prompt + reply])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        total -= logprobs.gather(1, torch.tensor(reply)[:, None]).sum().item()
        count += len(reply)
    return total / count


class Recorder(Listener):
    def __init__(self, stop_after=None):
        self.losses, self._stop_after = {}, stop_after

    def on_held_out_losses(self, done, losses):
        self.losses[done] = dict(losses)
        if done == self._stop_after:
            raise KeyboardInterrupt


def test_losses_are_those_of_transformers_and_fall(registry, tmp_path):
    only = [example(number) for number in NUMBERS]
    learned, held_out = hold_out(only)
    recorder = Recorder()
    run = start(
        registry, tmp_path, "run", "train.iterations=2", "train.minibatch_rows=null", "train.learning_rate=1e-4",
        "eval.before=false", examples=only,
    )  # fmt: skip
    trained = run.train(recorder)
    folder = trained.folder
    assert recorder.losses[0]["verifier"] == pytest.approx(surprise(held_out), abs=1e-4)
    with RunReader(folder) as reader:
        first = next(iter(reader.iterations)).policies["verifier"]
    assert first["loss"] == pytest.approx(surprise(learned), abs=1e-4)
    assert recorder.losses[0]["verifier"] > recorder.losses[1]["verifier"] > recorder.losses[2]["verifier"]
    assert [evaluation.iteration for evaluation in trained.evaluations] == [2], "played at the end alone"
    assert trained.summary.eval.before is None and trained.summary.eval.after is not None


def test_only_the_weights_of_the_agents_with_examples_change(whole):
    final = weights(whole, 3)
    first = weights(whole, 2)
    assert final["verifier"] != first["verifier"]
    assert final["code_executor"] != first["code_executor"]
    assert final["problem_solver"] == first["problem_solver"]
    assert all("problem_solver" not in each for each in losses(whole))


def test_its_peak_memory_is_recorded_after_every_epoch(whole):
    with RunReader(whole) as reader:
        recorded = [event.body for event in reader.events("memory")]
        assert [body["iteration"] for body in recorded] == [report.iteration for report in reader.iterations]
        assert reader.peak_memory == max(body["peak"] for body in recorded) > 100_000_000


def test_killed_and_resumed_it_is_equal_bit_for_bit(registry, whole, tmp_path):
    run = start(registry, tmp_path, "killed")
    with pytest.raises(KeyboardInterrupt):
        run.train(Recorder(stop_after=2))
    assert is_warm_start(run.folder)
    resumed = WarmStart.resume(run.folder, registry=registry).train()
    assert weights(resumed.folder, 3) == weights(whole, 3)
    assert losses(resumed.folder) == losses(whole)
    assert len(resumed.evaluations) == 2


def test_a_training_starts_from_the_best_epoch(registry, whole):
    words = (
        f"policies.default.from={whole}@best", f"run.root={whole.parent}", "run.name=trained", "train.iterations=1",
        "train.prompts=2", "eval.problems=2", "train.learning_rate=1e-12", "checkpoint.every=1",
    )  # fmt: skip
    trained = Run.from_recipe("mathchat/tiny", *words, registry=registry).train().folder
    best = json.loads((whole / "checkpoints" / "best.json").read_text())
    assert best["metric"] == HELD_OUT_LOSS
    mean = [np.mean(list(each.values())) for each in losses(whole)]
    assert (best["iteration"], best["value"]) == (np.argmin(mean) + 1, pytest.approx(min(mean)))
    started, taught = tensors(trained, 1), tensors(whole, best["iteration"])
    assert started.keys() == taught.keys()
    assert all(torch.allclose(started[name], tensor, rtol=0, atol=1e-9) for name, tensor in taught.items())


def test_it_stops_when_the_held_out_loss_falls_no_longer_and_goes_back(registry, tmp_path, monkeypatch):
    mean = iter([0.9, 0.5, 0.6, 0.7, 0.1])
    monkeypatch.setattr(warm_start, "_surprise", lambda scored, policy: next(mean))
    only = [example(number) for number in range(8)]
    folder = start(registry, tmp_path, "early", "train.iterations=9", examples=only).train().folder
    with RunReader(folder) as reader:
        assert len(list(reader.iterations)) == 3  # 0.9 was before the first epoch
    assert json.loads((folder / "checkpoints" / "best.json").read_text())["iteration"] == 1


def test_killed_before_the_best_is_recorded_a_resume_records_it(registry, tmp_path, monkeypatch):
    """Else the epoch with the least loss is none of the two latest, and its checkpoint is removed."""
    mean = iter([0.9, 0.5, 0.6, 0.7])
    monkeypatch.setattr(warm_start, "_surprise", lambda scored, policy: next(mean))
    run = start(registry, tmp_path, "killed", "train.iterations=9", examples=[example(number) for number in range(8)])

    async def killed(loop, losses, of=warm_start.WarmStartLoop._keep_least):
        if losses:
            raise KeyboardInterrupt
        await of(loop, losses)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(warm_start.WarmStartLoop, "_keep_least", killed)
        run.train()
    folder = WarmStart.resume(run.folder, registry=registry).train().folder
    assert json.loads((folder / "checkpoints" / "best.json").read_text())["iteration"] == 1
    assert tensors(folder, 1)
    with RunReader(folder) as reader:
        assert [event.body["iteration"] for event in reader.events("best")] == [1]


def test_steps_that_are_skipped_stop_it_with_a_checkpoint(registry, tmp_path):
    settings = ("train.learning_rate=1e38", "train.max_skipped=2", "eval.before=false")
    run = start(registry, tmp_path, "skipped", *settings, examples=[example(number) for number in range(16)])
    with pytest.raises(GuardStop, match=r"steps in a row were skipped[^$]*A checkpoint was written"):
        run.train()
    with RunReader(run.folder) as reader:
        (report,) = reader.iterations
    assert weights(run.folder, report.iteration)


def test_an_epoch_without_a_held_out_loss_is_not_the_best(registry, tmp_path, monkeypatch):
    """A step that makes weights too large to compute with is taken: the next one is not."""
    mean = iter([0.9, math.nan, 0.5, 0.6, 0.6])
    monkeypatch.setattr(warm_start, "_surprise", lambda scored, policy: next(mean))
    only = [example(number) for number in range(8)]
    folder = start(registry, tmp_path, "nan", "train.iterations=9", examples=only).train().folder
    with RunReader(folder) as reader:
        assert [event.body["iteration"] for event in reader.events("best")] == [2]
        assert len(list(reader.iterations)) == 4
    assert json.loads((folder / "checkpoints" / "best.json").read_text())["iteration"] == 2


def test_policies_that_do_not_learn_are_named(registry, tmp_path):
    run = start(registry, tmp_path, "frozen", "policies.verifier.kind=frozen")
    with pytest.raises(ConfigError, match="verifier plays by the policy verifier, which is not trained"):
        run.train()


BEYOND = Example(agent="verifier", prompt=example(1).prompt, reply="the answer is 2 " * 20)
UNREAD = Example(agent="verifier", prompt=(Message(role="user", content="what is 1 + 1 " * 40),), reply="2")


@pytest.mark.parametrize(
    ("long", "reason"),
    [
        (BEYOND, "longer than its max_tokens (16)"),
        (UNREAD, "longer than the window of its model (128 tokens)"),
    ],
    ids=["than its agent may write", "than its model reads"],
)
def test_long_examples_are_left_out(registry, tmp_path, long, reason):
    told = []

    class Told(Listener):
        def on_examples_left_out(self, agent, reason, count):
            told.append((agent, reason, count))

    words = ("train.iterations=1", "engine.options.max_model_len=128")
    run = start(registry, tmp_path, "long", *words, examples=[long, *EXAMPLES_OF_TWO])
    folder = run.train(Told()).folder
    assert told == [("verifier", reason, 1)]
    assert len((folder / EXAMPLES).read_text().splitlines()) == 1 + len(EXAMPLES_OF_TWO)
