"""Seconds of an iteration of a 60 M-parameter model on the cluster engine, against TRL's GRPOTrainer, both on CPUs.

Both have one model (float32, random weights), one thread for torch in each process, prompts of the same length, as many
sampled tokens for each, advantages by group, one optimiser step over all rows, and a KL penalty against the reference.
Ours is a whole iteration of `Run.train`: vLLM samples, a coach judges, a DeepSpeed rank scores and learns, and the new
weights are published to the sampler and probed. Theirs is a whole step of the trainer, in a process and an environment
of its own (`bench/peers/trl_grpo.py`), which samples with transformers' `generate`. TRL's two modes with vLLM do not
run on a CPU: `server` sends weights by NCCL alone (trl/generation/vllm_client.py), and `colocate` loads them by a
method that the model of vLLM's CPU worker lacks (`weight_loader`, trl/generation/vllm_generation.py).

They take turns in every round: while one works the other waits. The ratio is ours by theirs, seconds per sampled token
(a random model now and then samples its end token, which theirs may not), median over the rounds with a 95 % bootstrap
interval. What our phases took is printed; without the reference both would be quicker by one forward pass.

    make bench, or: .venv-cluster/bin/python bench/train_shape.py [--rounds 7] [--peer .venv-trl/bin/python] [--quick]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Libraries read it when they are imported, in this process as in every actor and in the peer.
os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
from measure import parse_arguments, print_result
from sync import MIDDLE, SMALL, Row, write_model
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from mappa.store.iteration_report import IterationReport
from mappa.training import Run
from mappa.training.listener import Listener
from mappa_core.hookspecs import Offer, hookimpl
from mappa_core.plugins import load_plugins
from mappa_core.protocols import Coach, Split, Stage, TaskSource, Workflow
from mappa_core.records import Message, Role, Scene, Task, Verdict

ROOT = Path(__file__).resolve().parents[1]
PEER = Path(__file__).resolve().parent / "peers" / "trl_grpo.py"
KL_COEF, LEARNING_RATE = 0.001, 1e-6
RECIPE = """
tasks: {{use: prompts, options: {{tokens: {prompt_tokens}}}}}
workflow: {{use: solo}}
policies: {{default: {{model: "{model}"}}}}
sampling: {{max_tokens: {sampled_tokens}, temperature: 1.0, concurrency: 256}}
coach: {{use: sums}}
estimator: {{use: grpo}}
loss: {{use: ppo, options: {{kl: k3, kl_coef: {kl_coef}}}}}
train: {{prompts: {prompts}, samples: {samples}, learning_rate: {learning_rate}, correction: {{kind: none}}}}
engine: {{use: cluster, options: {{max_model_len: {window}}}}}
checkpoint: {{every: 1000000}}
eval: {{problems: 1}}
"""


def write_words(folder: str, vocabulary: int) -> None:
    """A tokenizer with a word for every token of the model, so that a prompt has as many tokens as words."""
    words = Tokenizer(models.WordLevel({"a": 0, "</s>": 1} | {f"w{n}": n for n in range(2, vocabulary)}, unk_token="a"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    template = "{% for message in messages %}{{ message.content }}{% endfor %} </s>"
    PreTrainedTokenizerFast(
        tokenizer_object=words, eos_token="</s>", pad_token="a", chat_template=template
    ).save_pretrained(folder)


def prompt(number: int, tokens: int) -> str:
    """The prompt of a task: random words of every model's vocabulary, and the template's end token behind them."""
    return " ".join(f"w{word}" for word in np.random.default_rng(number).integers(2, 8_000, tokens - 1))


@dataclass
class PromptOptions:
    tokens: int = 64


class Prompts(TaskSource):
    def __init__(self, options: PromptOptions) -> None:
        self._tokens = options.tokens

    def load(self, split: Split) -> Sequence[Task]:
        return [Task(id=f"{split}{number}", prompt=prompt(number, self._tokens)) for number in range(1000)]


class Solo(Workflow):
    """One agent acts once."""

    agents = dict.fromkeys(("writer",), Role(brief="writes"))

    def __init__(self, options: Any) -> None:
        pass

    async def run(self, stage: Stage) -> None:
        await stage.act("writer", [Message(role="user", content=stage.task.prompt)])
        stage.record(correct=1.0)


class Sums(Coach):
    """Points that differ within every group: token ids, summed."""

    def __init__(self, options: Any) -> None:
        pass

    async def score(self, scene: Scene) -> Verdict:
        tokens = scene.step.completion.tokens
        assert tokens is not None
        return Verdict.scored(int(tokens.sum()) % 11, "the sum of its tokens")


class Plugin:
    def __init__(self, recipe: Path) -> None:
        self._recipe = recipe

    @hookimpl
    def mappa_tasks(self) -> Sequence[Offer[TaskSource]]:
        return [Offer("prompts", Prompts, PromptOptions)]

    @hookimpl
    def mappa_workflows(self) -> Sequence[Offer[Workflow]]:
        return [Offer("solo", Solo)]

    @hookimpl
    def mappa_coaches(self) -> Sequence[Offer[Coach]]:
        return [Offer("sums", Sums)]

    @hookimpl
    def mappa_recipes(self) -> Mapping[str, Path]:
        return {"shape": self._recipe}


class Peer:
    """TRL's trainer in its own process, which takes a step whenever it is asked."""

    def __init__(self, python: str, folder: Path, settings: Mapping[str, Any]) -> None:
        self._errors = folder / "peer.log"
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                (python, str(PEER), json.dumps(settings)),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=folder,
                env=os.environ | {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "CUDA_VISIBLE_DEVICES": ""},
            )  # fmt: skip

    def step(self) -> dict[str, float]:
        """Seconds of a step and of its phases, and the tokens of its prompts and actions."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("step\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit(f"{self._errors.read_text('utf-8')[-3000:]}\nthe peer ended")
        taken: dict[str, float] = json.loads(answer)
        return taken

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


class Turns(Listener):
    """Lets the peer take a step after every iteration. The first round, in which both warm up, does not count."""

    def __init__(self, peer: Peer, expected: Mapping[str, int]) -> None:
        self._peer, self._expected = peer, expected
        self._begun: float | None = None
        self.phases: list[Mapping[str, float]] = []
        """Seconds of each round's phases, ours and what is known of theirs."""
        self.taken: list[tuple[float, float]] = []
        """Seconds per sampled token of each round, ours and theirs."""

    def on_iteration_end(self, report: IterationReport) -> None:
        ended, theirs = time.perf_counter(), self._peer.step()
        counted = {name: theirs[name] for name in self._expected}
        if counted != self._expected or not 0.95 <= report.tokens / counted["sampled"] <= 1.0:
            raise SystemExit(f"other tokens than {self._expected}: {counted} there, {report.tokens} sampled here")
        if self._begun is not None:
            ours = ended - self._begun
            self.taken.append((ours / report.tokens, theirs["seconds"] / counted["sampled"]))
            learning = theirs["seconds"] - theirs["generate"] - theirs["score"]
            known = {"generate": theirs["generate"], "score": theirs["score"], "all else": learning}
            self.phases.append(
                {f"{name:9} of ours": taken for name, taken in report.seconds.items()}
                | {f"{name:9} of theirs": taken for name, taken in known.items()}
            )
            print(f"round {len(self.taken)}: ours {ours:.2f} s, theirs {theirs['seconds']:.2f} s", flush=True)
        self._begun = time.perf_counter()


def compare(peer_python: str, folder: Path, row: Row, size: Mapping[str, int], rounds: int) -> Turns:
    """Let ours and theirs take turns."""
    model, parameters = write_model(folder / "model", row)
    write_words(model, row.vocabulary)
    print(f"{parameters / 1e6:.0f} M parameters, {size['prompts']} x {size['samples']} actions a round")
    known = {**size, "model": model, "kl_coef": KL_COEF, "learning_rate": LEARNING_RATE}
    recipe = folder / "shape.yaml"
    recipe.write_text(RECIPE.format(**known, window=size["prompt_tokens"] + size["sampled_tokens"]))
    rows = size["prompts"] * size["samples"]
    expected = {"prompt": rows * size["prompt_tokens"], "sampled": rows * size["sampled_tokens"]}
    texts = [prompt(number, size["prompt_tokens"]) for number in range(size["prompts"] * (1 + rounds))]
    peer = Peer(peer_python, folder, {**known, "texts": texts, "steps": 1 + rounds})
    try:
        turns = Turns(peer, expected)
        registry = load_plugins(only=("engine",), modules={"bench": Plugin(recipe)})
        words = (f"run.root={folder / 'runs'}", f"train.iterations={1 + rounds}")
        Run.from_recipe("bench/shape", *words, registry=registry).train(turns)
    finally:
        peer.close()
    return turns


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--samples", type=int, default=8, help="actions for each prompt")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of a prompt, and as many sampled after it")
    parser.add_argument("--peer", default=str(ROOT / ".venv-trl" / "bin" / "python"), help="a Python that has TRL")
    asked = parse_arguments(parser, rounds=1, prompts=1, samples=2, tokens=16)
    size = {"prompts": asked.prompts, "samples": asked.samples}
    size |= {"prompt_tokens": asked.tokens, "sampled_tokens": asked.tokens}
    with tempfile.TemporaryDirectory(prefix="mappa-bench-") as folder:
        turns = compare(asked.peer, Path(folder), SMALL if asked.quick else MIDDLE, size, asked.rounds)
    for phase in turns.phases[0]:
        print(f"  {phase:20} {np.median([one[phase] for one in turns.phases]):7.3f} s, median")
    ours, theirs = np.array(turns.taken).T
    against = "TRL's GRPOTrainer with transformers' generate"
    print_result("train_shape", ours / theirs, unit="seconds of an iteration per sampled token", against=against)


if __name__ == "__main__":
    main()
