"""A byte-level tokenizer that knows lines of programs and pieces of names: lossless on any text.

Beneath is a small byte-pair encoding in which every digit stands alone. Above it, lines of programs and prompts (or
what is left of them around a name) and pieces of names are one token each; they are ordinary text, found leftmost and
longest. So a program of 25 tokens is a whole program, and what is none of this takes a few tokens more.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, get_args

from mappa_dsbench.contracts.faults import FAULTS
from mappa_dsbench.grading.metrics import METRICS
from mappa_dsbench.problem import Kind
from mappa_dsbench.roles import ROLES
from mappa_dsbench.tiny.names import PIECES
from mappa_dsbench.tiny.programs import parts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

BYTE_PAIRS = 320
"""Entries beneath: bytes, the tokens of the template, and merges."""
END = "<|end|>"
PAD = "<|pad|>"
SPEAKERS = ("system", "user", "assistant", "tool")
# A message is its speaker's token, its text as it is, and the end token: a conversation extends token by token.
TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
BRIEFS = ("engineer", "modeler", "analyst")
RESULTS = (
    "ok", "no code", "unclosed", "timeout", "AttributeError", "FileNotFoundError", "KeyError", "NameError",
    "SyntaxError", "TypeError", "ValueError",
)  # fmt: skip


def prompt_parts() -> list[str]:
    """Lines of the prompts, up to where a name begins."""
    made = [path for role in ROLES.values() for path in role.produces]
    return [
        *(f"{brief}: {kind}" for brief in BRIEFS for kind in get_args(Kind)),
        *(f"\nmetric: {metric}" for metric in METRICS),
        *("\nid: ", "\ntarget: ", ", ", "\nfiles:"),
        *(f"\n{fact}: {answer}" for fact in ("missing", "categorical") for answer in ("yes", "no")),
        *(f" {path}" for path in made),
        *(f"result: {result}" for result in RESULTS),
        *(f"\nunmet: {path}" for path in made),
        *(f" {fault}" for fault in FAULTS),
    ]


def build_tokenizer(texts: Iterable[str], window: int) -> PreTrainedTokenizerFast:
    """Learn the merges from `texts`; the same texts give the same tokenizer. `window` is the model's, in tokens."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=BYTE_PAIRS,
        special_tokens=[PAD, END, *(f"<|{speaker}|>" for speaker in SPEAKERS)],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    known = [*parts(), *prompt_parts(), *(piece for piece in PIECES if len(piece) > 1)]
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in known])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        chat_template=TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=window,
    )
