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
    from tokenizers import Tokenizer

BYTE_PAIRS = 320
"""Entries beneath: bytes, the tokens of the template, and merges."""
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


def tokens_of(texts: Iterable[str]) -> Tokenizer:
    """Learn the merges from `texts`; the same texts give the same tokenizer."""
    from tokenizers import AddedToken

    from mappa_core import byte_pairs

    tokens = byte_pairs(texts, BYTE_PAIRS)
    known = [*parts(), *prompt_parts(), *(piece for piece in PIECES if len(piece) > 1)]
    tokens.add_tokens([AddedToken(text, normalized=False) for text in known])
    return tokens
