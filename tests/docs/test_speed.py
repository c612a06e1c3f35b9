"""docs/speed.md has every benchmark, as bench/speed.py writes it, and other pages quote what stands there."""

import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "bench"))  # behind docs/evidence, which has files of the same names

import speed  # noqa: E402

QUOTED = re.compile(r"`(bench/\w+\.py[^`]*)`")
RATIO = re.compile(r"(\d+(?:\.\d+)?) x \[(\d+(?:\.\d+)?), (\d+(?:\.\d+)?)\]")
PAGES = [ROOT / "README.md", *(path for path in sorted((ROOT / "docs").rglob("*.md")) if path.name != "speed.md")]


def quotes():
    """Ratios in paragraphs that name a benchmark: the commands named there, and the figures."""
    for path in PAGES:
        for paragraph in path.read_text().split("\n\n"):
            commands = QUOTED.findall(paragraph)
            for figures in RATIO.findall(paragraph.replace("\n", " ")) if commands else ():
                yield pytest.param(commands, tuple(map(float, figures)), id=f"{path.stem}-{commands[0]}")


def test_the_page_is_what_the_figures_come_to():
    assert speed.PAGE.read_text() == speed.page(speed.read_rows()), "run: python bench/speed.py --page"


def test_every_benchmark_is_on_the_page():
    asked = {path.stem for path in speed.BENCH.glob("*.py") if "print_result(" in path.read_text()}
    assert set(speed.benchmarks()) - set(speed.FURTHER) == asked - {"measure", "speed"}
    page = speed.PAGE.read_text()
    for name in speed.benchmarks():
        assert f"| `{' '.join(speed.command(name))}` | {speed.question(name)} |" in page


def test_every_row_says_when_where_and_by_which_command():
    for name, row in speed.read_rows().items():
        assert name in speed.benchmarks() and row["bench"] == name.split()[0]
        assert 0 < row["low"] <= row["ratio"] <= row["high"]
        assert re.fullmatch(r"20\d\d-\d\d-\d\d", row["date"]) and row["machine"]
        assert row["command"] == " ".join(speed.command(name))


@pytest.mark.parametrize(("commands", "figures"), list(quotes()))
def test_figures_that_other_pages_quote_are_those_of_the_page(commands, figures):
    rows = [row for row in speed.read_rows().values() if row["command"].startswith(tuple(commands))]
    assert figures in [tuple(round(row[key], 2) for key in ("ratio", "low", "high")) for row in rows]


def test_there_are_quoted_figures():
    assert len(list(quotes())) >= 2


def test_one_row_is_measured_again_and_the_others_stay(tmp_path, monkeypatch):
    rows, last = (
        speed.read_rows(),
        {"bench": "credit", "ratio": 3.0, "low": 2.5, "high": 4.0, "unit": "x", "against": "y"},
    )
    (tmp_path / "speed.json").write_text(json.dumps(rows))
    monkeypatch.setattr(speed, "ROWS", tmp_path / "speed.json")
    monkeypatch.setattr(speed, "PAGE", tmp_path / "speed.md")
    monkeypatch.setattr(sys, "argv", ["speed.py", "--only", "credit"])
    ran = []

    def run(command, **options):
        ran.append(list(map(str, command)))
        return speed.subprocess.CompletedProcess(command, 0, stdout=f"round 1\n{json.dumps(last)}\n")

    monkeypatch.setattr(speed.subprocess, "run", run)
    speed.main()
    found = speed.read_rows()
    assert found["credit"].items() >= last.items()
    assert {name: row for name, row in found.items() if name != "credit"} == {
        name: row for name, row in rows.items() if name != "credit"
    }
    assert "| 3.00 [2.50, 4.00] | x | y |" in speed.PAGE.read_text()
    assert [command[-1] for command in ran if "python" in command[0]] == [str(speed.BENCH / "credit.py")]
