"""What agents and programs wrote is shown on a terminal, and never obeyed."""

import io
import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from rich.markup import escape
from rich.table import Table

from mappa.cli.console import Console, echo
from mappa.cli.main import cli
from mappa.runs import RunFolder
from mappa.testing import FixedCoach, play
from mappa_core import Message, Role, Task, ToolResult, ToolSpec, Verdict
from mappa_core.redaction import UNSEEN, clean

ROOT = Path(__file__).parents[2]
ATTACKS = {
    "erases the screen": "\x1b[2J\x1b[H",
    "sets the title": "\x1b]0;owned\x07",
    "hides what follows": "\x1b[8m",
    "one-byte control sequence": "\x9b31m",
    "goes back": "10\b\b9",
    "overwrites the line": "wrong\rright",
    "right to left": "score \u202e01\u202c",
    "isolates": "\u2066a\u2069",
    "writes with invisible letters": "\U000e0041\U000e0042",
    "rings": "\a",
}
UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\U000e0000-\U000e0fff]")


@given(st.text())
def test_nothing_unseen_is_left_and_the_rest_is_kept(text):
    shown = clean(text)
    assert not UNSEEN.search(shown)
    assert len(shown) >= len(text)
    if not UNSEEN.search(text):
        assert shown == text


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_json_keeps_its_meaning(text):
    assert json.loads(clean(json.dumps({text: text}, ensure_ascii=False))) == {text: text}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
@pytest.mark.parametrize("terminal", [False, True])
def test_a_console_shows_it_wherever_it_stands(attack, terminal):
    console = Console(
        file=io.StringIO(), force_terminal=terminal, color_system="standard" if terminal else None, width=80
    )
    table = Table(title=escape(attack))
    table.add_column(escape(attack))
    table.add_row(escape(attack))
    console.print(attack, markup=False)
    console.print(f"[bold red]so{escape(attack)}[/]")
    console.print(table)
    console.rule(escape(attack))
    printed = re.sub("\x1b\\[[0-9;]*m", "", console.file.getvalue()) if terminal else console.file.getvalue()
    assert not UNSAFE.search(printed.replace("\n", ""))
    assert ("\x1b[1;31m" in console.file.getvalue()) is terminal


class Prints:
    """A tool whose output is an attack."""

    spec = ToolSpec(name="prints", description="prints", schema={"type": "object"})

    def __init__(self, text):
        self._text = text

    async def call(self, arguments, workspace, limits):
        return ToolResult(tool="prints", status="ok", stdout=self._text, stderr=self._text)

    async def close(self): ...


async def test_a_trajectory_is_printed_without_what_its_agents_smuggled_in(tmp_path):
    from mappa_core import Workflow

    attack = "".join(ATTACKS.values())

    class Team(Workflow):
        agents = {"solver": Role(brief="solves")}  # noqa: RUF012

        async def run(self, stage):
            await stage.act("solver", [Message(role="user", content=attack)], tools=("prints",))
            raise ValueError(attack)

    class Says(FixedCoach):
        async def score(self, scene):
            return Verdict.scored(5, attack)

    call = '<tool_call>{"name": "prints", "arguments": {}}</tool_call>'
    folder = RunFolder.create(tmp_path, "run", plugin="p", recipe="r", config="")
    with folder:
        task = Task(id="t", prompt=attack, reference=attack, stratum=attack)
        await play(
            Team(), task, [attack + call], tools={"prints": Prints(attack)}, coach=Says(5.0), recorder=folder.store
        )
    for arguments in (["runs", "trace", str(folder.path), "train-000000/t/000"], ["runs", "show", str(folder.path)]):
        printed = CliRunner().invoke(cli, arguments, catch_exceptions=False).output
        assert not UNSAFE.search(printed.replace("\n", "")), arguments
    assert "\\u001b[2J" in printed or "\\u202e" in printed


def test_commands_print_on_no_other_console():
    """One boundary: rich's own console is opened nowhere else, and neither is what programs printed echoed by click."""
    sources = [
        path
        for folder in ("mappa_core", "mappa", "plugins")
        for path in (ROOT / folder).rglob("*.py")
        if "tests" not in path.parts
    ]
    own = ROOT / "mappa/cli/console.py"
    opened = [
        path
        for path in sources
        if path != own
        and re.search(
            r"from rich\.console import .*\bConsole\b|rich\.get_console|import rich\.console", path.read_text()
        )
    ]
    assert opened == []


def test_an_echo_is_clean(capsys):
    echo("\x1b[2Jx", nl=False)
    assert capsys.readouterr().out == "\\u001b[2Jx"


def on_a_terminal(width: int, *printed: str) -> list[str]:
    console = Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)
    for text in printed:
        console.print(text, soft_wrap=True, highlight=False)
    return console.file.getvalue().splitlines()


def test_a_terminal_is_given_lines_that_end_between_words():
    assert on_a_terminal(12, "what one has measured", "  3 x it cannot be told") == [
        "what one has", "measured", "  3 x it", "  cannot be", "  told",
    ]  # fmt: skip
    assert on_a_terminal(9, "[bold]see /a/long/path now[/]", "", "a\n\nb") == [
        "see",
        "/a/long/path",
        "now",
        "",
        "a",
        "",
        "b",
    ]


def test_what_follows_a_label_stands_behind_it():
    assert on_a_terminal(20, "advice    train the solver") == ["advice    train the", "          solver"]


@pytest.mark.parametrize(
    "line", ["next     mappa runs show runs/first, mappa view", "report   runs/a name/report.html"]
)
def test_what_is_copied_from_a_terminal_is_left_whole(line):
    assert on_a_terminal(20, line) == [line]


@given(st.text(st.sampled_from("ab /é漢[\n")), st.integers(1, 30))
def test_nothing_but_spaces_is_lost_where_lines_are_broken(text, width):
    shown = "\n".join(on_a_terminal(width, escape(text)))
    assert shown.split() == text.split()


def test_a_file_is_given_whole_lines():
    console = Console(file=io.StringIO(), width=12)
    console.print("what one has measured", soft_wrap=True, highlight=False)
    assert console.file.getvalue() == "what one has measured\n"
