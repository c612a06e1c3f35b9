"""A column of agents is one entry of a list: the command line's table, the report and the viewer's overview show it."""

from __future__ import annotations

import io
import re
import shutil
from pathlib import Path
from types import ModuleType

import pytest
from rich.console import Console
from starlette.testclient import TestClient

from mappa.look.view import report
from mappa.look.view.web import overview
from mappa.look.view.web.app import create_app
from mappa.look.view.web.run_folders import RunFolders
from mappa.runs import RunReader
from mappa.store.agent_columns import AGENT_COLUMNS, AgentColumn

TITLES = ["score", "tool success", "turns", "tokens/action"]
PAIRS = AgentColumn(name="pairs", title="pairs of turns", spec=".3f", value=lambda figures: (figures.turns or 0.0) / 2)


def shown(folder: Path, tables: ModuleType) -> tuple[str, str, str]:
    """The table of the command line, the report page and the overview page."""
    with RunReader(folder) as reader:
        summary = reader.summary
    console = Console(file=io.StringIO(), width=200)
    console.print(tables.agents_table(summary.agents))
    client = TestClient(create_app(RunFolders([folder.parent]), token="t"), base_url="http://127.0.0.1")
    client.get("/?token=t")
    page = report.write_report(folder, summary).read_text(encoding="utf-8")
    return console.file.getvalue(), page, client.get("/").text


@pytest.fixture
def folder(root: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(root / "hostile", tmp_path / "runs" / "hostile"))


def test_tables_of_agents_have_the_columns_of_the_list(folder: Path, tables: ModuleType) -> None:
    assert [column.title for column in AGENT_COLUMNS] == TITLES
    table, page, overview_page = shown(folder, tables)
    assert re.search(r"score +tool success +turns +tokens/action *\n *planner +6\.10 +80\.0 % +4\.00 +96\.0", table)
    assert "".join(f"<th>{title}</th>" for title in TITLES) in page
    cells = zip(TITLES, ("6.10", "80.0 %", "4.00", "96.0"), strict=True)
    assert "<td>planner</td>" + "".join(f'<td data-name="{title}">{value}</td>' for title, value in cells) in page
    assert re.search(r'title="score \d\.\d\d, tool success 80\.0 %, turns 4\.00, tokens/action \d+\.\d"', overview_page)


def test_added_column_appears_in_every_table_of_agents(
    folder: Path, tables: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    for user in (tables, report, overview):
        assert user.AGENT_COLUMNS is AGENT_COLUMNS
        monkeypatch.setattr(user, "AGENT_COLUMNS", (*AGENT_COLUMNS, PAIRS))
    table, page, overview_page = shown(folder, tables)
    assert re.search(r"tokens/action +pairs of turns *\n *planner .* 2\.000", table)
    assert "<th>pairs of turns</th>" in page and '<td data-name="pairs of turns">2.000</td>' in page
    assert "pairs of turns 2.000" in overview_page
