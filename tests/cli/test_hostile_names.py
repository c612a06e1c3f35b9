"""What anything is called is text on a terminal and a page: no line, no colour and no markup is a name's own."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from mappa.cli import main
from mappa.cli.console import Console
from mappa.look.dataset.card import _plain
from mappa.runs import RunReader
from mappa_core.config.agent_names import describe_name_fault
from mappa_core.redaction import MAX_NAME_LENGTH, clean_name

from ..hostile_names import two_hundred

UNSAFE = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\U000e0000-\U000e0fff]"
)


def imported(folder: Path, names: list[str]) -> Path:
    """A run whose agents, strata, tasks and outcomes are called so; each name acts in a rollout of its own."""
    rows = [
        {
            "id": name,
            "kind": name,
            "figures": {"x": 0.5},
            "messages": [
                {"role": "user", "content": "Begin."},
                {"role": "assistant", "name": name, "content": "I do it.", "tool_calls": [
                    {"id": "1", "type": "function", "function": {"name": name, "arguments": "{}"}}
                ]},
                {"role": "tool", "tool_call_id": "1", "content": "done"},
            ],
        }
        for name in names
    ]  # fmt: skip
    folder.mkdir()
    (folder / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["--task-id", "id", "--stratum", "kind", "--outcome", f"{names[0]}=figures.x", "--outcome", "figures.x"]
    assert main(["import", str(folder / "log.jsonl"), *words, "--root", str(folder), "--name", "run"]) == 0
    return folder / "run"


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> tuple[Path, Path, list[str]]:
    names: list[str] = []
    for name in two_hundred():
        # Some are too long for an agent, and some read like another.
        if describe_name_fault([*names, name]) is None:
            names.append(name)
    assert len(names) > 180
    plain = [f"plain-{number}" for number in range(len(names))]
    folder = tmp_path_factory.mktemp("names")
    return imported(folder / "hostile", names), imported(folder / "plain", plain), names


def printed(capsys, *words: str) -> str:
    capsys.readouterr()
    main(list(words))
    return "".join(capsys.readouterr())


COMMANDS = {
    "observe": ["observe", "RUN"],
    "runs show": ["runs", "show", "RUN", "--limit", "500"],
    "judge": ["judge", "RUN", "--coach", "evidence"],
    "observe again": ["observe", "RUN"],
    "report": ["report", "RUN"],
}


@pytest.mark.slow
@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_two_hundred_names_make_no_line_of_their_own(runs, capsys, words):
    hostile, plain, _ = runs
    shown, expected = (
        printed(capsys, *(str(run) if word == "RUN" else word for word in words)) for run in (hostile, plain)
    )
    assert "Traceback" not in shown
    assert not UNSAFE.search(shown.replace("\n", "")), ascii(UNSAFE.search(shown.replace("\n", ""))[0])
    assert shown.count("\n") == expected.count("\n")


def test_a_trace_shows_every_name_as_text(runs, capsys):
    hostile, plain, _ = runs
    for run, other in zip(*(list(RunReader(folder).trajectories)[::20] for folder in (hostile, plain)), strict=True):
        shown, expected = (
            printed(capsys, "runs", "trace", str(hostile), run.id),
            printed(capsys, "runs", "trace", str(plain), other.id),
        )
        assert "I do it." in shown
        assert not UNSAFE.search(shown.replace("\n", ""))
        assert shown.count("\n") == expected.count("\n")


def test_the_page_of_a_run_shows_every_name_as_text(runs, capsys):
    hostile, _, _ = runs
    printed(capsys, "report", str(hostile))
    page = (hostile / "report.html").read_text()
    assert not UNSAFE.search(page.replace("\n", "").replace("\t", ""))
    assert "<script>alert(1)" not in page and "<img src=x" not in page


def test_a_name_is_one_line_of_two_hundred_characters_at_most():
    for name in two_hundred():
        shown = clean_name(name)
        assert not UNSAFE.search(shown) and "\n" not in shown
        assert len(clean_name("x" * 10_000)) <= MAX_NAME_LENGTH
    assert clean_name("Data Engineer 研究员 🙂") == "Data Engineer 研究员 🙂"


def test_a_card_shows_every_name_as_text():
    for name in two_hundred():
        shown = _plain(name)
        assert "\n" not in shown and not re.search(r"(?<!\\)(?:\\\\)*[|<>`\[\]]", shown), ascii(name)
    assert _plain("data_engineer-2") == "data_engineer-2"


def test_the_console_takes_no_markup_from_a_name(capsys):
    from mappa.cli.console import Name, escape
    from mappa.cli.tables import columns_table

    for name in two_hundred():
        console = Console(width=400)
        table = columns_table(name, name)
        table.add_row(Name(name), "1")
        console.print(table)
        console.print(f"[bold]{escape(name)}[/]")
    assert not UNSAFE.search(capsys.readouterr().out.replace("\n", ""))


@pytest.mark.parametrize("name", ["nobody", " Nobody ", "environment", "task", "null", "\u200b"])
def test_a_log_whose_agent_bears_a_word_of_verdicts_is_refused_with_what_to_do(tmp_path, capsys, name):
    said = [
        {"role": "user", "content": "Begin."},
        {"role": "assistant", "name": name, "who": "coder", "content": "Yes."},
    ]
    (tmp_path / "log.jsonl").write_text(json.dumps({"messages": said}))
    words = ["import", str(tmp_path / "log.jsonl"), "--root", str(tmp_path / "runs"), "--name", "run"]
    assert main(words) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "line 1: an agent " in error and "--agent-from names the key" in error
    assert not (tmp_path / "runs").exists()
    assert main([*words, "--agent-from", "who"]) == 0


def test_a_log_whose_roles_are_user_and_tool_is_imported(tmp_path, capsys):
    said = [
        {"role": "user", "name": "user", "content": "Begin."},
        {"role": "assistant", "content": "Yes.", "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "tool", "arguments": "{}"}}
        ]},
        {"role": "tool", "name": "tool", "tool_call_id": "1", "content": "done"},
    ]  # fmt: skip
    (tmp_path / "log.jsonl").write_text(json.dumps({"messages": said}))
    assert main(["import", str(tmp_path / "log.jsonl"), "--root", str(tmp_path), "--name", "run"]) == 0
    assert "actions: assistant 1" in capsys.readouterr().out
