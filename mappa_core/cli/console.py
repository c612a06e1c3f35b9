"""The console of commands: what agents, programs and errors wrote is shown and not obeyed, and keys are masked."""

from collections.abc import Iterator
from typing import Any

import click
import rich.console
from rich.segment import Segment

from mappa_core.redaction import clean


class Console(rich.console.Console):
    """A console of rich on which control characters and keys of a text are shown by what stands for them."""

    def render(self, *args: Any, **kwargs: Any) -> Iterator[Segment]:
        for segment in super().render(*args, **kwargs):
            yield segment if segment.control else segment._replace(text=clean(segment.text))


def echo(text: str, **options: Any) -> None:
    """Print a text that holds others' words, also JSON, as `click.echo` does, and `clean`."""
    click.echo(clean(text), **options)
