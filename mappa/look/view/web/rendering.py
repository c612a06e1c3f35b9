"""Renders templates. Texts of agents, programs and tasks are always escaped, and characters that a browser would hide,
or that change the direction of text, are made visible."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028\u2029\u202a-\u202e\u2060-\u2069\ufeff\ufffe\uffff"
    "\ud800-\udfff]"
)
"""Control characters other than tab and newline, characters that change the direction of text, and surrogates."""


def show_invisible(text: str) -> str:
    """Replace every invisible or direction-changing character by its code point."""
    return _INVISIBLE.sub(lambda found: f"‹U+{ord(found.group()):04X}›", text)


def _finalize(value: Any) -> Any:
    """Finalize a value that a template outputs. Markup is left alone: it was built from finalized values."""
    return show_invisible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def format_number(value: float | None, spec: str = ".3g") -> str:
    """Format a figure; a dash if it is None."""
    return "–" if value is None else format(value, spec)


def format_json(value: Any) -> str:
    """Format what a call was given as people read it: without escapes, which are left to HTML."""
    return json.dumps(value, ensure_ascii=False, indent=2, default=str)


def truncate(text: str, max_length: int) -> str:
    """Truncate a text to `max_length` characters with an ellipsis."""
    return text if len(text) <= max_length else f"{text[: max_length - 1].rstrip()}…"


@cache
def template_environment() -> Environment:
    found = Environment(
        loader=PackageLoader("mappa.look.view"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters.update(
        number=format_number,
        cut=truncate,
        json=format_json,
        part=lambda text: quote(str(text).encode(errors="replace"), safe=""),
    )
    return found


def render(template: str, **context: Any) -> bytes:
    return template_environment().get_template(template).render(context).encode()
