"""Supervised training of small models from scratch, so that they can act before reinforcement learning."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging

from mappa_core import Message

PAD, END = "<|pad|>", "<|end|>"
ROLES = tuple(f"<|{role}|>" for role in ("system", "user", "assistant", "tool"))
SPECIAL_TOKENS = (PAD, END, *ROLES)
# A message is its role's token, its text and the end token, so the tokens of a conversation are a prefix of its
# continuation's.
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
LOG_EVERY, LOSS_WINDOW = 100, 50
"""Steps between two reports of the loss, and steps over which the final loss is averaged."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """A tokenized conversation: token ids, and a mask of those that count in the loss."""

    tokens: list[int]
    loss_mask: list[bool]


def byte_pairs(texts: Iterable[str], entries: int) -> Tokenizer:
    """Train a byte-level BPE tokenizer of so many entries: lossless on any text, one token per digit and per role. The
    same texts give the same merges."""
    tokens = Tokenizer(models.BPE())
    tokens.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokens.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=entries,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokens.train_from_iterator(texts, trainer)
    return tokens


def encode(tokenizer: PreTrainedTokenizerFast, conversation: Sequence[Message]) -> Encoded:
    """Tokenize as the template renders the conversation; the loss mask covers assistant text and its end tokens."""
    tokens: list[int] = []
    loss_mask: list[bool] = []
    for message in conversation:
        body = [*tokenizer.encode(message.content, add_special_tokens=False), tokenizer.eos_token_id]
        tokens += [tokenizer.convert_tokens_to_ids(f"<|{message.role}|>"), *body]
        loss_mask += [False, *[message.role == "assistant"] * len(body)]
    return Encoded(tokens, loss_mask)


class Imitator:
    """Trains a small model of Qwen3's architecture, with its tokenizer, on conversations. On one thread the same seed,
    conversations and library versions give the same bytes on the same machine."""

    def __init__(
        self, tokens: Tokenizer, *, window: int, seed: int, shape: Mapping[str, Any], template: str = CHAT_TEMPLATE
    ) -> None:
        """`tokens` contains all of `SPECIAL_TOKENS`. `window`: maximum context length. `shape`: further arguments of
        `Qwen3Config`: sizes, and numbers of layers and heads."""
        self.tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=tokens,
            eos_token=END,
            pad_token=PAD,
            chat_template=template,
            clean_up_tokenization_spaces=False,
            model_max_length=window,
        )
        torch.manual_seed(seed)
        self.model = Qwen3ForCausalLM(
            Qwen3Config(
                vocab_size=len(self.tokenizer),
                max_position_embeddings=window,
                rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
                tie_word_embeddings=True,
                bos_token_id=None,
                eos_token_id=self.tokenizer.eos_token_id,
                pad_token_id=self.tokenizer.pad_token_id,
                **shape,
            )
        )

    def encode(self, conversation: Sequence[Message]) -> Encoded:
        """Tokenize a conversation for training."""
        return encode(self.tokenizer, conversation)

    def loss(self, batch: Sequence[Encoded]) -> torch.Tensor:
        """Compute the mean cross-entropy, in nats, over the tokens in the loss mask. Padding is on the right, where
        causal attention never looks."""
        width = max(len(row.tokens) for row in batch)
        tokens = torch.full((len(batch), width), self.tokenizer.pad_token_id)
        targets = torch.full((len(batch), width), -100)
        for index, row in enumerate(batch):
            ids = torch.tensor(row.tokens)
            tokens[index, : len(ids)] = ids
            targets[index, : len(ids)] = torch.where(torch.tensor(row.loss_mask), ids, -100)
        hidden = self.model.model(input_ids=tokens).last_hidden_state[:, :-1]
        written = targets[:, 1:] != -100
        return torch.nn.functional.cross_entropy(self.model.lm_head(hidden[written]), targets[:, 1:][written])

    def imitate(
        self,
        batches: Iterable[Sequence[Encoded]],
        *,
        learning_rate: float,
        learning_rate_factor: Callable[[int], float],
        report: Callable[[str], None],
    ) -> float:
        """Train with one AdamW step per batch, on one thread; return the mean loss of the last steps, in nats. The
        learning rate of a step, from 0, is multiplied by `learning_rate_factor(step)`. `report` receives progress
        lines."""
        torch.set_num_threads(1)
        optimiser = torch.optim.AdamW(self.model.parameters(), lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.01)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, learning_rate_factor)
        losses: list[float] = []
        for batch in batches:
            loss = self.loss(batch)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            optimiser.step()
            schedule.step()
            losses.append(float(loss.detach()))
            if len(losses) % LOG_EVERY == 0:
                report(f"step {len(losses):5d}  loss {sum(losses[-LOG_EVERY:]) / LOG_EVERY:.4f}")
        return sum(losses[-LOSS_WINDOW:]) / len(losses[-LOSS_WINDOW:])

    def save(self, folder: Path, made: Mapping[str, Any], *, package: str, half: bool) -> None:
        """Write model and tokenizer, and to `manifest.json` their provenance: `made`, and the versions of Python,
        `package` and the libraries. `half`: store weights as float16."""
        logging.disable_progress_bar()
        (self.model.half() if half else self.model).save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        libraries = {name: version(name) for name in (package, "torch", "transformers", "tokenizers")}
        manifest = {**made, "made_with": {"python": platform.python_version(), **libraries}}
        (folder / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
