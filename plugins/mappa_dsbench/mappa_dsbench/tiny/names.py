"""Draws column names for demonstrations, from pieces that are one token each.

A program copies names from its task, and held-out tables have other names. So that the model learns copying and not the
names, most names are random pieces in random order. The pieces include the words of both splits, as a token must be
known to be copied; but no name is drawn that a held-out table could have.
"""

from __future__ import annotations

import re
from random import Random

from mappa_dsbench.embedded.names import HELD_OUT_WORDS, TRAINING_WORDS

WORDS = (*TRAINING_WORDS, *HELD_OUT_WORDS)
NUMBERS = range(100)
PIECES = (
    *(form for word in WORDS for form in (word, f"_{word}", word.title())),
    *(f"_{number}" for number in NUMBERS),
    *("ID_", "_id", "Id"),
    *"_0123456789",
)
ANY_PIECES_SHARE, MAX_PIECES = 0.75, 3
"""Share of the names that are random pieces, and their largest number of pieces."""

_HELD_OUT = re.compile(rf"({'|'.join((*HELD_OUT_WORDS, 'id'))}|[_0-9])+", re.IGNORECASE)


def could_be_held_out(name: str) -> bool:
    """Whether a column of a held-out table might have this name."""
    return _HELD_OUT.fullmatch(name) is not None


def draw_column(rng: Random) -> str:
    """Draw the name of a column: random pieces, or `word`, `word_word`, `word_12`."""
    if rng.random() < ANY_PIECES_SHARE:
        return _draw_any(rng)
    one, other = rng.sample(TRAINING_WORDS, 2)
    return rng.choice((one, f"{one}_{other}", f"{one}_{rng.choice(NUMBERS)}"))


def draw_identifier(rng: Random) -> str:
    """Draw the name of the id column: random pieces, or `word_id`, `WordId`, `ID_word`."""
    if rng.random() < ANY_PIECES_SHARE:
        return _draw_any(rng)
    word = rng.choice(TRAINING_WORDS)
    return rng.choice((f"{word}_id", f"{word.title()}Id", f"ID_{word}"))


def _draw_any(rng: Random) -> str:
    while could_be_held_out(name := "".join(rng.choices(PIECES, k=rng.randint(1, MAX_PIECES)))):
        pass
    return name
