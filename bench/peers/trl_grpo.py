"""TRL's side of `bench/train_shape.py`: a step of GRPOTrainer for every line on standard input.

Its one argument is a JSON object of settings. Every step is answered by a line: its seconds, from sampling to the
optimiser, those of them in which it samples and scores, and how many tokens its prompts and actions had.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class Turns(TrainerCallback):
    """Waits for a line before every step, and answers after it."""

    def __init__(self, answers: int) -> None:
        self._answers = os.fdopen(answers, "w")
        self._begun = 0.0
        self._seen = self._sampled = 0
        self._phases = {"generate": 0.0, "score": 0.0}

    def watch(self, trainer: GRPOTrainer) -> None:
        """Count the time in which the trainer samples, and scores with the reference."""
        for phase, name in (("generate", "_generate"), ("score", "_get_per_token_logps_and_entropies")):
            setattr(trainer, name, self._timed(phase, getattr(trainer, name)))

    def _timed(self, phase: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **named: Any) -> Any:
            begun = time.perf_counter()
            try:
                return work(*arguments, **named)
            finally:
                if not torch.is_grad_enabled() or phase == "generate":
                    self._phases[phase] += time.perf_counter() - begun

        return timed

    def on_step_begin(self, args: Any, state: Any, control: Any, **known: Any) -> None:
        if not sys.stdin.readline():
            raise SystemExit("nobody asks any more")
        self._seen, self._sampled = state.num_input_tokens_seen, 0
        self._phases = dict.fromkeys(self._phases, 0.0)
        self._begun = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **known: Any) -> None:
        seconds = time.perf_counter() - self._begun
        prompt = int(state.num_input_tokens_seen - self._seen) - self._sampled
        counted = {"prompt": prompt, "sampled": self._sampled, **self._phases}
        print(json.dumps({"seconds": seconds, **counted}), file=self._answers, flush=True)

    def reward(self, prompts: Any, completion_ids: list[list[int]], **known: Any) -> list[float]:
        """Points that differ within every group, as the coach of ours gives them."""
        self._sampled += sum(map(len, completion_ids))
        return [float(sum(ids) % 11) for ids in completion_ids]


def main() -> None:
    given = json.loads(sys.argv[1])
    # Libraries print to standard output.
    answers = os.dup(1)
    os.dup2(2, 1)
    torch.set_num_threads(1)
    turns = Turns(answers)
    rows = given["prompts"] * given["samples"]
    arguments = GRPOConfig(
        output_dir="trl",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        per_device_train_batch_size=rows,
        num_generations=given["samples"],
        max_completion_length=given["sampled_tokens"],
        generation_kwargs={"min_new_tokens": given["sampled_tokens"]},
        temperature=1.0,
        beta=given["kl_coef"],
        learning_rate=given["learning_rate"],
        adam_beta2=0.95,
        max_steps=given["steps"],
        shuffle_dataset=False,
        dataloader_num_workers=0,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        model_init_kwargs={"dtype": "float32"},
    )
    trainer = GRPOTrainer(
        model=given["model"],
        reward_funcs=turns.reward,
        args=arguments,
        train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": text}]} for text in given["texts"]]),
        callbacks=[turns],
    )
    turns.watch(trainer)
    trainer.train()


if __name__ == "__main__":
    main()
