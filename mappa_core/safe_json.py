"""Parse JSON that a stranger wrote, above all a model, within limits under which nothing that handles it later fails:
neither recursion nor arithmetic nor encoding. Standard library only."""

import json
import re
from functools import partial
from math import isfinite
from typing import Any

MAX_CHARACTERS = 8_000_000
MAX_DEPTH = 64
MAX_DIGITS = 100
"""Characters of one number; a whole number must also fit into 64 bits."""
_SURROGATE = re.compile("[\ud800-\udfff]")


def parse_untrusted_json(text: str, *, max_characters: int = MAX_CHARACTERS) -> Any:
    """Parse `text`. Raises ValueError, which quotes nothing, for what is no JSON, exceeds a limit, has a key twice in
    one object, or holds half a character (an unpaired surrogate)."""
    if len(text) > max_characters:
        raise ValueError(f"it is longer than {max_characters} characters")
    whole, real = partial(_number, int), partial(_number, float)
    decoder = json.JSONDecoder(object_pairs_hook=_object, parse_int=whole, parse_float=real, parse_constant=real)
    try:
        value = decoder.decode(text)
    except json.JSONDecodeError as error:
        what = error.msg.removesuffix(" at")
        raise ValueError(f"it is no JSON: {what} at line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels") from None
    # Level by level, without recursion: Python's own limit lies far above MAX_DEPTH, and other readers' may not.
    level = [value]
    for _ in range(MAX_DEPTH):
        if any(isinstance(item, str) and _SURROGATE.search(item) for item in level):
            raise ValueError("it holds half a character (an unpaired surrogate)")
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                below += [*item, *item.values()]
            elif isinstance(item, list):
                below += item
        level = below
    if level:
        raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels")
    return value


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
