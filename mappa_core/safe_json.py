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
    level = [value]
    for _ in range(MAX_DEPTH):
        if any(isinstance(one, str) and _SURROGATE.search(one) for one in level):
            raise ValueError("it holds half a character (an unpaired surrogate)")
        groups = [[*one, *one.values()] if isinstance(one, dict) else one for one in level]
        level = [inner for group in groups if isinstance(group, list) for inner in group]
    if level:
        raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) < len(pairs):
        raise ValueError("a key occurs twice in it")
    return found


def _number(kind: type[int | float], digits: str) -> int | float:
    if len(digits) <= MAX_DIGITS and isfinite(value := kind(digits)) and (kind is float or -(2**63) <= value < 2**63):
        return value
    raise ValueError("it holds a number that is not finite, or too large or too long")
