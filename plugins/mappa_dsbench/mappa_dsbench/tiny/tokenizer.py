"""A byte-level tokenizer with tokens for lines of programs and pieces of names: lossless on any text.

Its base is a small byte-pair encoding in which every digit is a token. On top, lines of programs and prompts (or their
parts around a name) and pieces of names are one token each, matched leftmost and longest. So a whole program takes
about 25 tokens, and other text takes a few more.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, get_args

from mappa_dsbench.contracts.faults import FAULT_IS_HARD
from mappa_dsbench.grading.metrics import METRICS
from mappa_dsbench.problem import ProblemKind
from mappa_dsbench.roles import ROLES
from mappa_dsbench.tiny.names import PIECES
from mappa_dsbench.tiny.programs import line_tokens

if TYPE_CHECKING:
    from tokenizers import Tokenizer

BYTE_PAIR_ENTRIES = 320
"""Entries of the base encoding: bytes, the tokens of the template, and merges."""
BRIEFS = ("engineer", "modeler", "analyst")
RESULT_WORDS = (
    "ok", "no code", "unclosed", "timeout", "AttributeError", "FileNotFoundError", "KeyError", "NameError",
    "SyntaxError", "TypeError", "ValueError",
)  # fmt: skip


def prompt_tokens() -> list[str]:
    """Return lines of the prompts, up to the first name."""
    made = [path for role in ROLES.values() for path in role.produces]
    return [
        *(f"{brief}: {kind}" for brief in BRIEFS for kind in get_args(ProblemKind)),
        *(f"\nmetric: {metric}" for metric in METRICS),
        *("\nid: ", "\ntarget: ", ", ", "\nfiles:"),
        *(f"\n{fact}: {answer}" for fact in ("missing", "categorical") for answer in ("yes", "no")),
        *(f" {path}" for path in made),
        *(f"result: {result}" for result in RESULT_WORDS),
        *(f"\nunmet: {path}" for path in made),
        *(f" {fault}" for fault in FAULT_IS_HARD),
    ]


def train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """Train the tokenizer on `texts`; the same texts give the same tokenizer."""
    from tokenizers import AddedToken

    from mappa_engine import byte_pairs

    tokens = byte_pairs(texts, BYTE_PAIR_ENTRIES)
    known = [*line_tokens(), *prompt_tokens(), *(piece for piece in PIECES if len(piece) > 1)]
    tokens.add_tokens([AddedToken(text, normalized=False) for text in known])
    return tokens
