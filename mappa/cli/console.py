"""The console of commands: what agents, programs and errors wrote is shown and not obeyed, and keys are masked."""

import re
from collections.abc import Iterator
from typing import Any

import click
import rich.console
import rich.markup
from rich.cells import cell_len, chop_cells
from rich.measure import Measurement
from rich.rule import Rule
from rich.segment import Segment
from rich.text import Text

from mappa_core.redaction import clean, clean_line, clean_name

FILE_WIDTH = 400
"""Columns where the output is no terminal: nothing is shortened for a file."""
RULE_WIDTH = 80
_COPIED = re.compile(r"\w+ {2,}(mappa |\S*/)")
"""A label and a command or a path, which is copied from the line whole: `next     mappa view …`."""
_INDENT = re.compile(r" *(\w+ {2,})?")
_WORD = re.compile(r"\S+\s*")


class Console(rich.console.Console):
    """A console of rich that shows placeholders in place of control characters and API keys."""

    def __init__(self, **options: Any) -> None:
        # In a notebook, too, this prints text: what is shown there as HTML shows itself.
        super().__init__(force_jupyter=False, **options)
        if not self.is_terminal and options.get("width") is None and "COLUMNS" not in self._environ:
            self.width = FILE_WIDTH

    def print(self, *objects: Any, soft_wrap: bool | None = None, **options: Any) -> None:
        """Print as rich does; with `soft_wrap` a terminal is given lines that end between words."""
        if soft_wrap and self.is_terminal:
            objects = tuple(self._break_lines(one, options.get("markup")) for one in objects)
        super().print(*objects, soft_wrap=soft_wrap, **options)

    def _break_lines(self, shown: Any, markup: bool | None) -> Any:
        if not isinstance(shown, str | Text) or _COPIED.match(str(shown)):
            return shown
        text = self.render_str(shown, markup=markup, highlight=False) if isinstance(shown, str) else shown
        lines = text.split("\n", allow_blank=True)
        return Text("\n").join(part for line in lines for part in break_line(line, self.width))

    def rule(self, title: Any = "", **options: Any) -> None:
        self.print(Rule(title, **options), width=min(self.width, RULE_WIDTH))

    def render(self, *args: Any, **kwargs: Any) -> Iterator[Segment]:
        for segment in super().render(*args, **kwargs):
            yield segment if segment.control else segment._replace(text=clean(segment.text))


def break_line(line: Text, width: int) -> Iterator[Text]:
    """Break a line between words. What follows is indented as the line is, or as what stands behind its label; a word
    that is too long stays whole."""
    indent = next(_INDENT.finditer(line.plain)).end()
    column, starts = indent, list[int]()
    for word in _WORD.finditer(line.plain, indent):
        if column > indent and column + cell_len(word[0].rstrip()) > width:
            starts.append(word.start())
            column = indent
        column += cell_len(word[0])
    for number, part in enumerate(line.divide(starts)):
        part.rstrip()
        yield Text(" " * indent).append_text(part) if number else part


class Name:
    """A name in a table: as one line, without its middle where the table would not fit."""

    def __init__(self, text: str) -> None:
        self._text = clean_name(text)

    def __rich_measure__(self, console: rich.console.Console, options: rich.console.ConsoleOptions) -> Measurement:
        return Measurement(min(12, cell_len(self._text)), cell_len(self._text))

    def __rich_console__(self, console: rich.console.Console, options: rich.console.ConsoleOptions) -> Iterator[Text]:
        text, room = self._text, options.max_width
        if cell_len(text) > room > 2:
            text = f"{chop_cells(text, (room - 1) // 2)[0]}…{chop_cells(text[::-1], room // 2)[0][::-1]}"
        yield Text(text, no_wrap=True)


def escape(text: str) -> str:
    """Return names, and words of ours between them, for markup of rich: on one line, and with no markup of theirs."""
    return rich.markup.escape(clean_line(text))


def echo(text: str, **options: Any) -> None:
    """Print untrusted text, also JSON, as `click.echo` does, after `clean`."""
    click.echo(clean(text), **options)
