"""Names of columns as the small model reads and writes them: of pieces that are one token each.

A program copies names out of its task, and the tables of the held-out tasks have names of their own. So that copying is
learned, and not the names, most of the drawn ones are any pieces in any order. The pieces hold the words of both
splits, as a token has to be known to be copied; but no name is drawn that a held-out table could have.
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
ANY, LONGEST = 0.75, 3
"""Share of the names that are drawn of any pieces, and of how many at most."""

_HELD_OUT = re.compile(rf"({'|'.join((*HELD_OUT_WORDS, 'id'))}|[_0-9])+", re.IGNORECASE)


def could_be_held_out(name: str) -> bool:
    """Whether a column of a held-out table might have this name."""
    return _HELD_OUT.fullmatch(name) is not None


def column(rng: Random) -> str:
    """The name of a column: any pieces, or `word`, `word_word`, `word_12`."""
    if rng.random() < ANY:
        return _any(rng)
    one, other = rng.sample(TRAINING_WORDS, 2)
    return rng.choice((one, f"{one}_{other}", f"{one}_{rng.choice(NUMBERS)}"))


def identifier(rng: Random) -> str:
    """The name of the column of the ids: any pieces, or `word_id`, `WordId`, `ID_word`."""
    if rng.random() < ANY:
        return _any(rng)
    word = rng.choice(TRAINING_WORDS)
    return rng.choice((f"{word}_id", f"{word.title()}Id", f"ID_{word}"))


def _any(rng: Random) -> str:
    while could_be_held_out(name := "".join(rng.choices(PIECES, k=rng.randint(1, LONGEST)))):
        pass
    return name
