"""What a command prints of a value, as text: values of a notebook or a script show themselves by it."""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO

from mappa.cli.console import Console

WIDTH = 110


def as_printed(show: Callable[[Console], None]) -> str:
    """The text that `show` prints on a console, without colours."""
    text = StringIO()
    show(Console(file=text, width=WIDTH, color_system=None))
    return "\n".join(line.rstrip() for line in text.getvalue().rstrip().split("\n"))
