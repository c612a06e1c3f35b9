"""The pages in the terminal, and as one file for language models."""

from __future__ import annotations

import json

from mappa.cli import main
from mappa.look.manual import FOLDER, find_pages, index_pages, join_pages, read_pages, split_pages


def test_joined_pages_come_apart_again(tmp_path):
    (tmp_path / "how-to").mkdir()
    (tmp_path / "index.md").write_text("# One\ntext\n")
    (tmp_path / "how-to" / "two.md").write_text("# Two\n\nmore\n")
    pages = split_pages(join_pages(tmp_path))
    assert pages == {"how-to/two.md": "# Two\n\nmore\n", "index.md": "# One\ntext\n"}
    assert "- [Two](how-to/two.html)" in index_pages(pages)
    assert find_pages(pages, "two") == find_pages(pages, "more") == ["how-to/two.md"]
    assert find_pages(pages, "three") == []


def test_every_page_of_the_documents_is_there():
    assert set(read_pages()) == {path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*.md")}


def test_docs_command_prints_pages_and_topics_and_refuses_unknown_topics(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["docs", "gateway"]) == 0
    assert capsys.readouterr().out.startswith("# Bring an existing agent")
    assert main(["docs", "learning", "rate"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert len(listed) > 3 and max(map(len, listed)) <= 80
    assert main(["docs", "import", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)) == ["import.md"]
    assert main(["docs", "quantum", "chromodynamics"]) == 2
    assert "no page mentions 'quantum chromodynamics'" in " ".join(capsys.readouterr().err.split())
