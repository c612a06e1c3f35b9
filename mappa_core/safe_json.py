"""Parse JSON that a stranger wrote, above all a model, within limits under which nothing that handles it later fails:
neither recursion nor arithmetic nor encoding; and JSON of the user's own files, of which as much as can be is kept.
Standard library only."""

import json
import re
from collections.abc import Iterator
from functools import partial
from math import isfinite
from typing import Any

MAX_CHARACTERS = 8_000_000
MAX_DEPTH = 64
MAX_DIGITS = 100
"""Characters of one number; a whole number must also fit into 64 bits."""
MAX_OWN_DIGITS = 4_000
"""Digits of a whole number in the user's own files: Python refuses to write one of more than 4,300."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")


def parse_untrusted_json(text: str, *, max_characters: int = MAX_CHARACTERS) -> Any:
    """Parse `text`. Raises ValueError, which quotes nothing, for what is no JSON, exceeds a limit, has a key twice in
    one object, or holds half a character (an unpaired surrogate)."""
    whole, real = partial(_number, int), partial(_number, float)
    decoder = json.JSONDecoder(object_pairs_hook=_object, parse_int=whole, parse_float=real, parse_constant=real)
    value = _decode(decoder, text, max_characters)
    if any(isinstance(item, str) and _SURROGATE.search(item) for level in _levels(value) for item in level):
        raise ValueError("it holds half a character (an unpaired surrogate)")
    return value


def parse_own_json(text: str, *, max_characters: int = MAX_CHARACTERS) -> Any:
    """Parse a text of the user's own, which other programs wrote: numbers that are not finite are floats (`nan`,
    `inf`), whole numbers of any length are kept (longer than MAX_OWN_DIGITS as texts), and half a character becomes
    U+FFFD. Raises ValueError as `parse_untrusted_json` does for the rest."""
    decoder = json.JSONDecoder(object_pairs_hook=_object, parse_int=_own_number)
    value = _decode(decoder, text, max_characters)
    for _ in _levels(value):
        pass
    # The decoder made one character of each pair, so what is left has no other half.
    return _mend(value) if _SURROGATE_ESCAPE.search(text) else value


def _decode(decoder: json.JSONDecoder, text: str, max_characters: int) -> Any:
    if len(text) > max_characters:
        raise ValueError(f"it is longer than {max_characters} characters")
    try:
        return decoder.decode(text)
    except json.JSONDecodeError as error:
        what = error.msg.removesuffix(" at")
        raise ValueError(f"it is no JSON: {what} at line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels") from None


def _levels(value: Any) -> Iterator[list[Any]]:
    """The values of each level. Raises ValueError behind the deepest that may be. Without recursion: Python's own limit
    lies far above MAX_DEPTH, and other readers' may not."""
    level = [value]
    for _ in range(MAX_DEPTH):
        yield level
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                below += [*item, *item.values()]
            elif isinstance(item, list):
                below += item
        level = below
    if level:
        raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels")


def _mend(value: Any) -> Any:
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, list):
        return [_mend(item) for item in value]
    return {_mend(key): _mend(item) for key, item in value.items()} if isinstance(value, dict) else value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # Parsers differ in which of the two they take, so nobody could say what was meant.
    entries = dict(pairs)
    if len(entries) < len(pairs):
        raise ValueError("a key occurs twice in it")
    return entries


def _number(kind: type[int | float], digits: str) -> int | float:
    # The length first: Python refuses whole numbers of more than 4300 digits by an error of its own.
    if len(digits) <= MAX_DIGITS:
        value = kind(digits)
        is_stored = kind is float or -(2**63) <= value < 2**63
        if isfinite(value) and is_stored:
            return value
    raise ValueError("it holds a number that is not finite, or too large or too long")


def _own_number(digits: str) -> int | str:
    return int(digits) if len(digits) <= MAX_OWN_DIGITS else digits
