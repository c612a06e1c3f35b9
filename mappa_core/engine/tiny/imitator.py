"""Small models that can act before they are trained: random weights that learn to write what conversations show."""

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

from mappa_core.records import Message

PAD, END = "<|pad|>", "<|end|>"
ROLES = tuple(f"<|{role}|>" for role in ("system", "user", "assistant", "tool"))
SPECIAL = (PAD, END, *ROLES)
# A message is its role's token, its text as it is, and the end token: a conversation extends token by token.
TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
SHOWN, LAST = 100, 50
"""Steps from one word on the loss to the next, and over which the last loss is a mean."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """One conversation: token ids, and which of them the model has to learn to write."""

    tokens: list[int]
    learned: list[bool]


def byte_pairs(texts: Iterable[str], entries: int) -> Tokenizer:
    """A byte-level tokenizer of so many entries: lossless on any text, one token a digit, one a role. The same texts
    give the same merges."""
    tokens = Tokenizer(models.BPE())
    tokens.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokens.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=entries,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokens.train_from_iterator(texts, trainer)
    return tokens


def encode(tokenizer: PreTrainedTokenizerFast, conversation: Sequence[Message]) -> Encoded:
    """Tokens exactly as the template renders the conversation; learned are the assistant's, its end included."""
    tokens: list[int] = []
    learned: list[bool] = []
    for message in conversation:
        body = [*tokenizer.encode(message.content, add_special_tokens=False), tokenizer.eos_token_id]
        tokens += [tokenizer.convert_tokens_to_ids(f"<|{message.role}|>"), *body]
        learned += [False, *[message.role == "assistant"] * len(body)]
    return Encoded(tokens, learned)


class Imitator:
    """A model of Qwen3's shape and its tokenizer. On one thread the same seed, conversations and versions give the same
    bytes on the same machine."""

    def __init__(
        self, tokens: Tokenizer, *, window: int, seed: int, shape: Mapping[str, Any], template: str = TEMPLATE
    ) -> None:
        """`tokens` has all of `SPECIAL`. `window`: the most tokens that the model reads. `shape`: what `Qwen3Config` is
        given beside: sizes, and numbers of layers and heads."""
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
        """The conversation as the model is shown it."""
        return encode(self.tokenizer, conversation)

    def loss(self, batch: Sequence[Encoded]) -> torch.Tensor:
        """Mean cross-entropy, in nats, over the learned tokens of the batch. Padding lies to the right, where causal
        attention never looks."""
        width = max(len(row.tokens) for row in batch)
        tokens = torch.full((len(batch), width), self.tokenizer.pad_token_id)
        targets = torch.full((len(batch), width), -100)
        for index, row in enumerate(batch):
            ids = torch.tensor(row.tokens)
            tokens[index, : len(ids)] = ids
            targets[index, : len(ids)] = torch.where(torch.tensor(row.learned), ids, -100)
        hidden = self.model.model(input_ids=tokens).last_hidden_state[:, :-1]
        written = targets[:, 1:] != -100
        return torch.nn.functional.cross_entropy(self.model.lm_head(hidden[written]), targets[:, 1:][written])

    def imitate(
        self,
        batches: Iterable[Sequence[Encoded]],
        *,
        learning_rate: float,
        share: Callable[[int], float],
        tell: Callable[[str], None],
    ) -> float:
        """A step of AdamW per batch, on one thread; the mean loss of the last steps, in nats. `share(step)` of the
        learning rate is used at a step, from 0. `tell` hears of the loss now and then."""
        torch.set_num_threads(1)
        optimiser = torch.optim.AdamW(self.model.parameters(), lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.01)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, share)
        losses: list[float] = []
        for batch in batches:
            loss = self.loss(batch)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            optimiser.step()
            schedule.step()
            losses.append(float(loss.detach()))
            if len(losses) % SHOWN == 0:
                tell(f"step {len(losses):5d}  loss {sum(losses[-SHOWN:]) / SHOWN:.4f}")
        return sum(losses[-LAST:]) / len(losses[-LAST:])

    def save(self, folder: Path, made: Mapping[str, Any], *, package: str, half: bool) -> None:
        """Write model and tokenizer, and to `manifest.json` how they were made: `made`, and the versions of Python, of
        `package` and of the libraries. `half`: weights as float16."""
        logging.disable_progress_bar()
        (self.model.half() if half else self.model).save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        libraries = {name: version(name) for name in (package, "torch", "transformers", "tokenizers")}
        manifest = {**made, "made_with": {"python": platform.python_version(), **libraries}}
        (folder / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
