"""Synthetic dialogues for the tiny model: each message offers options, and each answer is one of them."""

from __future__ import annotations

import json
import string
from collections.abc import Iterator
from random import Random

from mappa_core import Message

_CONSONANTS, _VOWELS = "bcdfghjklmnpqrstvwxyz", "aeiou"
_MARKS = "?!.,:;"


def echo_dialogues(random: Random) -> Iterator[list[Message]]:
    """Yield dialogues whose answer repeats the whole message of a few words: copying is learned first."""
    while True:
        text = " ".join(_word(random) for _ in range(random.randint(1, 5)))
        yield [Message(role="user", content=text), Message(role="assistant", content=text)]


def choice_dialogues(random: Random) -> Iterator[list[Message]]:
    """Yield dialogues whose message offers options and whose answer is one of them."""
    while True:
        prose = [_sentence(random) for _ in range(random.choice((0, 1, 1, 2)))]
        if prose and random.random() < 0.2:
            text = "\n".join(prose)
            answer = random.choice(text.split())
        else:
            offers = [_offer(random) for _ in range(random.randint(2, 5))]
            after = [_sentence(random)] if random.random() < 0.3 else []
            text = "\n".join([*prose, *(f"- {offer}" for offer in offers), *after])
            answer = random.choice(offers)
        yield [Message(role="user", content=text), Message(role="assistant", content=answer)]


def _sentence(random: Random) -> str:
    words = [_word(random) for _ in range(random.randint(1, 7))]
    mark: str = random.choice((*_MARKS, ""))
    return " ".join(words) + mark


def _offer(random: Random) -> str:
    if random.random() < 0.1:
        call = {"name": _word(random), "arguments": {_word(random): random.choice((_word(random), _number(random)))}}
        return f"<tool_call>{json.dumps(call)}</tool_call>"
    return " ".join(_word(random) for _ in range(random.choice((1, 1, 2, 3))))


def _word(random: Random) -> str:
    kind = random.random()
    if kind < 0.7:
        syllables = (random.choice(_CONSONANTS) + random.choice(_VOWELS) for _ in range(random.randint(1, 3)))
        stem = "".join(syllables)
        ending: str = random.choice((*_CONSONANTS, "", "st", "ng", "ck"))
        return stem + ending
    if kind < 0.8:
        return _word(random).capitalize()
    if kind < 0.9:
        return str(_number(random))
    return "".join(random.choices(string.ascii_letters + string.digits + "_-+=/().,'", k=random.randint(1, 10)))


def _number(random: Random) -> int:
    return random.randrange(10 ** random.randint(1, 4))
