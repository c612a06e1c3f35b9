"""Renders templates. Texts of agents, programs and tasks are always escaped, and what a browser would hide is shown."""

from __future__ import annotations

import json
from functools import cache
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined

from mappa.look.view.visible_text import finalize


def format_number(value: float | None, spec: str = ".3g") -> str:
    """Format a figure; a dash if it is None."""
    return "–" if value is None else format(value, spec)


def format_json(value: Any) -> str:
    """Format what a call was given as people read it: without escapes, which are left to HTML."""
    return json.dumps(value, ensure_ascii=False, indent=2, default=str)


def truncate(text: str, max_length: int) -> str:
    """Truncate a text to `max_length` characters with an ellipsis, after a whole word unless that loses half of
    them."""
    if len(text) <= max_length:
        return text
    words = text[:max_length].rpartition(" ")[0].rstrip()
    return f"{words if 2 * len(words) >= max_length else text[: max_length - 1].rstrip()}…"


@cache
def template_environment() -> Environment:
    found = Environment(
        loader=PackageLoader("mappa.look.view"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=finalize,
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
