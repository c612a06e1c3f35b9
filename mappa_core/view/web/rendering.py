"""Templates to text. What agents, programs and tasks wrote is escaped everywhere, and what a browser would hide or turn
around is made visible."""

from __future__ import annotations

import re
from functools import cache
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

_ODD = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028\u2029\u202a-\u202e\u2060-\u2069\ufeff\ufffe\uffff"
    "\ud800-\udfff]"
)
"""Control characters but tab and newline, what changes the direction of text, and what UTF-8 lacks."""


def visible(text: str) -> str:
    """The text with the number of every character that is not to be seen, or that moves others, in its place."""
    return _ODD.sub(lambda found: f"‹U+{ord(found.group()):04X}›", text)


def _shown(value: Any) -> Any:
    """Every value that a template puts out; Markup was put together from such values."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def number(value: float | None, spec: str = ".3g") -> str:
    """A figure, or a dash where it is not known."""
    return "–" if value is None else format(value, spec)


def cut(text: str, most: int) -> str:
    """The text, or its beginning with an ellipsis."""
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"


@cache
def environment() -> Environment:
    found = Environment(
        loader=PackageLoader("mappa_core.view"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters.update(number=number, cut=cut, part=lambda text: quote(str(text).encode(errors="replace"), safe=""))
    return found


def render(template: str, **context: Any) -> bytes:
    return environment().get_template(template).render(context).encode()
