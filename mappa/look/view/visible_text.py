"""Text of strangers on a page: what a browser would hide, or what changes the direction of text, is shown."""

from __future__ import annotations

import re
from typing import Any

from markupsafe import Markup

_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028\u2029\u202a-\u202e\u2060-\u2069\ufeff\ufffe\uffff"
    "\ud800-\udfff\U000e0000-\U000e0fff]"
)
"""Control characters other than tab and newline, characters that change the direction of text, and surrogates."""


def show_invisible(text: str) -> str:
    """Replace every invisible or direction-changing character by its code point."""
    return _INVISIBLE.sub(lambda found: f"‹U+{ord(found.group()):04X}›", text)


def finalize(value: Any) -> Any:
    """Finalize a value that a template outputs. Markup is left alone: it was built from finalized values."""
    return show_invisible(value) if isinstance(value, str) and not isinstance(value, Markup) else value
