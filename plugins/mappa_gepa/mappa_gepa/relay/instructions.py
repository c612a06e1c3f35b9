"""The instructions that agents of the relay follow: sentences, and what each does to a list of words."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

Words = list[str]

INSTRUCTIONS: Mapping[str, Callable[[Words], Words]] = MappingProxyType({
    "Leave out words of fewer than four letters.": lambda words: [word for word in words if len(word) > 3],
    "Leave out words of more than six letters.": lambda words: [word for word in words if len(word) < 7],
    "Leave out every word that came before.": lambda words: list(dict.fromkeys(words)),
    "Leave out every second word.": lambda words: words[::2],
    "Leave out the first word.": lambda words: words[1:],
    "Leave out the last word.": lambda words: words[:-1],
    "Sort the words by the alphabet.": sorted,
    "Sort the words by their length.": lambda words: sorted(words, key=len),
    "Reverse the order of the words.": lambda words: words[::-1],
    "Leave out all but the first four words.": lambda words: words[:4],
    "Write every word in capitals.": lambda words: [word.upper() for word in words],
    "Write every word backwards.": lambda words: [word[::-1] for word in words],
    "Write every word twice.": lambda words: [word for word in words for _ in range(2)],
    "Write only the first letter of every word.": lambda words: [word[:1] for word in words],
    "Put a full stop after the last word.": lambda words: [*words[:-1], *(f"{word}." for word in words[-1:])],
    "Put a hyphen between the words.": lambda words: ["-".join(words)],
})  # fmt: skip
"""In the order in which they are followed, wherever they stand."""

WORDS_MARK = "Words:"
"""Begins the line of a message that holds the words."""


def find_instructions(text: str) -> tuple[str, ...]:
    """Return the known instructions that stand in `text`, in the order in which they are followed."""
    plain = re.sub(r"\s+", " ", text)
    return tuple(instruction for instruction in INSTRUCTIONS if instruction in plain)


def follow(instructions: Sequence[str], words: Words) -> Words:
    """Return what `instructions` make of `words`."""
    for instruction in INSTRUCTIONS:
        if instruction in instructions:
            words = INSTRUCTIONS[instruction](words)
    return words
