"""`mappa docs`: read the documentation in the terminal."""

from __future__ import annotations

import json

import click

from mappa.cli.common_options import json_option
from mappa.cli.console import Console, Name, echo
from mappa.cli.tables import columns_table
from mappa_core import ConfigError


@click.command("docs")
@click.argument("topic", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Print all pages as one text.")
@json_option
def command(topic: tuple[str, ...], everything: bool, as_json: bool) -> None:
    """Read the documentation: a page by its name, or pages on a TOPIC.

    \b
      mappa docs                      all pages
      mappa docs observe              the page that is called so
      mappa docs learning rate        the pages that say most of it, best first
      mappa docs --all | less         everything, for a coding agent, too
    """
    from mappa.look.manual import read_pages, title_of
    from mappa.look.manual_search import find_pages

    pages = read_pages()
    if topic:
        found = find_pages(pages, " ".join(topic))
        if not found:
            raise ConfigError(f"no page mentions {' '.join(topic)!r}: mappa docs lists all of them")
        pages = {name: pages[name] for name in found}
    if as_json:
        echo(json.dumps(pages, ensure_ascii=False))
    elif everything or len(pages) == 1:
        echo("\n".join(pages.values()))
    else:
        table = columns_table("page", "title", text=2)
        for name, page in pages.items():
            table.add_row(Name(name.removesuffix(".md")), Name(title_of(page)))
        Console().print(table)
