"""Plain tables: names on the left, figures on the right."""

from __future__ import annotations

from collections.abc import Mapping

from rich.table import Table

from mappa.cli.console import Name, escape
from mappa.store.agent_columns import AGENT_COLUMNS, AgentSummary


def columns_table(*names: str, text: int = 1) -> Table:
    """Build a plain table: the first `text` columns are for a `Name` each, the others for figures that stay whole."""
    table = Table(box=None, header_style="dim")
    for place, name in enumerate(names):
        table.add_column(escape(name), justify="left" if place < text else "right", no_wrap=place >= text)
    return table


def agents_table(agents: Mapping[str, AgentSummary]) -> Table:
    """Build a table with one row per agent."""
    table = columns_table("", *(column.title for column in AGENT_COLUMNS))
    for agent, figures in agents.items():
        table.add_row(Name(agent), *(column.cell(figures) for column in AGENT_COLUMNS))
    return table
