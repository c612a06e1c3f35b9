"""The front: exit codes, messages, signals, and what is not imported."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
from importlib.metadata import EntryPoint, version

import click
import pytest

from mappa.cli import main
from mappa.cli.command_group import command_names, grouped_names
from mappa.cli.command_table import COMMANDS, FIRST, GROUPS
from mappa.cli.main import cli
from mappa_core import plugins

HEAVY = (
    "torch",
    "transformers",
    "ray",
    "deepspeed",
    "vllm",
    "datasets",
    "pyarrow",
    "math_verify",
    "sympy",
    "acme_team.heavy",
)


def run(site, *args):
    """`python -m mappa` in a process of its own, with the plugins of `site`."""
    return subprocess.run(command(*args), capture_output=True, text=True, env=environment(site))


def command(*args):
    return [sys.executable, "-m", "mappa", *args]


def environment(site):
    return {**os.environ, "PYTHONPATH": site.python_path}


# --- exit codes -------------------------------------------------------------------------------------------------------


def test_a_command_of_a_plugin_is_found_under_its_name(acme, capsys):
    assert main(["acme", "hello"]) == 0
    assert capsys.readouterr().out == "hello from acme\n"


def test_wrong_input_is_one_message_without_traceback_and_exit_code_2(acme, capsys):
    assert main(["acme", "reject"]) == 2
    captured = capsys.readouterr()
    assert captured.err == "Error: tasks.json:3: a row has no [prompt]; add one\n"
    assert captured.out == ""


def test_a_guard_is_exit_code_3(acme, capsys):
    assert main(["acme", "guard"]) == 3
    assert "Stopped: too many verdicts are missing (12 of 40)" in capsys.readouterr().err


def test_an_engine_that_does_not_start_is_one_message_and_exit_code_3(acme, capsys):
    assert main(["acme", "lose"]) == 3
    assert capsys.readouterr().err == "Engine lost: Ray did not start on this machine within 120 s\n"


def test_a_bug_keeps_its_traceback_and_is_exit_code_1(acme):
    done = run(acme, "acme", "bug")
    assert done.returncode == 1
    assert "Traceback" in done.stderr and "ZeroDivisionError: a bug of acme" in done.stderr


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["trian"], "No such command 'trian'. Did you mean train?"),
        (["acne", "hello"], "No such command 'acne'. Did you mean acme?"),
        (["plugins", "--jsn"], "No such option"),
        (["acme", "helo"], "No such command 'helo'"),
    ],
)
def test_a_wrong_word_is_exit_code_2(acme, capsys, args, message):
    assert main(args) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_closes_what_is_open_and_has_its_exit_code(acme, number, code):
    process = subprocess.Popen(command("acme", "wait"), stdout=subprocess.PIPE, text=True, env=environment(acme))
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    assert process.communicate()[0] == "closed\n"
    assert process.returncode == code


def test_the_handler_of_sigterm_is_put_back(acme):
    before = signal.getsignal(signal.SIGTERM)
    main(["acme", "hello"])
    assert signal.getsignal(signal.SIGTERM) is before


# --- plugins ----------------------------------------------------------------------------------------------------------


def test_a_command_that_cannot_be_imported_says_why_when_it_is_called(site, capsys):
    site.install("acme_broken")
    assert main(["broken", "hello"]) == 2
    assert "the command broken (acme-broken) does not load: ModuleNotFoundError" in capsys.readouterr().err


def test_a_command_that_ends_the_process_when_it_is_imported_is_named(acme, capsys, monkeypatch):
    monkeypatch.setattr(EntryPoint, "load", lambda point: sys.exit(0))
    assert main(["acme", "hello"]) == 2
    assert "the command acme (acme-team) does not load: SystemExit: 0" in capsys.readouterr().err


def test_a_plugin_that_ends_the_process_when_it_is_imported_stops_no_command(site, capsys):
    site.write("leaving", "exit()")
    assert main(["plugins"]) == 0
    assert "leaving" in capsys.readouterr().out


def test_a_broken_plugin_does_not_stop_the_others(acme, capsys):
    acme.install("acme_broken")
    assert main(["acme", "hello"]) == 0


def test_a_blocked_plugin_has_no_commands(acme, capsys):
    assert main(["--block", "acme", "acme", "hello"]) == 2
    assert "No such command 'acme'" in capsys.readouterr().err


def test_block_is_the_way_out_of_a_clash(acme, capsys):
    acme.write("copy", "@hookimpl\ndef mappa_tools():\n    return [Offer('acme_tool', str)]")
    assert main(["plugins"]) == 2
    assert "mappa --block copy" in capsys.readouterr().err
    assert main(["--block", "copy", "plugins"]) == 0


def test_a_plugin_without_commands_is_not_listed_and_says_so_when_it_is_called(site, capsys):
    site.write("quiet", "")
    assert main(["--commands"]) == 0
    assert "quiet" not in capsys.readouterr().out
    assert main(["quiet", "--help"]) == 2
    assert "The plugin quiet has no commands of its own" in capsys.readouterr().err


# --- help -------------------------------------------------------------------------------------------------------------


def test_help_has_a_line_on_the_first_commands_and_names_all_others_in_a_line_a_group(acme, capsys):
    assert len(FIRST) <= 9
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert [line.split()[0] for line in first_part(out).splitlines()] == [*FIRST]
    for name in FIRST:
        assert f"  {name.ljust(7)}  {COMMANDS[name].summary}\n" in out
    for group, names in GROUPS.items():
        assert f"\n  {group.ljust(7)}  {', '.join(names)}\n" in out
    (others,) = (line.split(maxsplit=1)[1] for line in out.splitlines() if line.startswith("  other "))
    assert others.split(", ") == ["acme", "dsbench", "mathchat", "sandboxfusion"]


def first_part(help_text):
    return help_text.partition("First commands:\n")[2].partition("\n\n")[0]


@pytest.mark.parametrize("columns", [80, 120])
def test_the_first_screen_fits_in_a_terminal(columns, capsys):
    assert cli.main(["--help"], "mappa", standalone_mode=False, terminal_width=columns) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= columns and len(lines) <= 30
    assert len(first_part("\n".join(lines)).splitlines()) == len(FIRST)


def test_all_commands_are_shown_with_a_line_on_each(acme, capsys):
    assert main(["--commands"]) == 0
    out = capsys.readouterr().out
    shown = dict(line.strip().split("  ", 1) for line in out.splitlines() if line.startswith("  ") and line[2] != " ")
    assert [*shown] == cli.list_commands(click.Context(cli))
    assert shown["acme"].strip() == "A team that nobody in core knows."
    assert [line for line in out.splitlines() if line.endswith(":")] == [
        "look:",
        "judge:",
        "train:",
        "extend:",
        "other:",
    ]


@pytest.mark.parametrize("name", [name for name in command_names() if name in COMMANDS])
def test_the_line_on_a_command_is_its_own(name):
    command = cli.get_command(click.Context(cli), name)
    assert command.get_short_help_str(200) == COMMANDS[name].summary


def test_every_command_of_this_project_is_in_a_group():
    context = click.Context(cli)
    assert grouped_names(context)["other"] == ["dsbench", "mathchat", "sandboxfusion"]
    assert {*command_names()} - {*cli.list_commands(context)} == {"completion", "sandbox"}


def test_help_reads_once_what_is_installed(monkeypatch, capsys):
    read, groups = plugins.entry_points, []
    monkeypatch.setattr(plugins, "entry_points", lambda group: groups.append(group) or read(group=group))
    assert main(["--help"]) == 0
    assert groups == ["mappa.commands"]


def test_help_works_beside_a_broken_plugin(site, capsys):
    site.install("acme_broken")
    assert main(["--help"]) == 0


@pytest.mark.parametrize("name", command_names())
def test_every_command_has_help(name, capsys):
    assert main([name, "--help"]) == 0
    assert "Usage: mappa " + name in capsys.readouterr().out


def test_the_version_is_that_of_the_distribution(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"mappa, version {version('mappa-core')}\n"


@pytest.mark.parametrize(
    "args", [[], ["--help"], ["--commands"], ["plugins"], ["plugins", "--json"], ["config", "--plugin", "acme"]]
)
def test_nothing_heavy_is_imported(acme, args):
    program = (
        "import sys, json\n"
        "from mappa.cli import main\n"
        f"main({args!r})\n"
        f"print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment(acme))
    assert json.loads(done.stderr.splitlines()[-1]) == []


@pytest.mark.parametrize("option", ["--help", "--commands"])
def test_lists_of_commands_import_no_command_no_plugin_and_nothing_that_prints(acme, option):
    program = (
        "import sys\nfrom mappa.cli import main\n"
        f"main([{option!r}])\n"
        "print([name for name in sys.modules if name.startswith(('acme_', 'mappa.'))], file=sys.stderr)\n"
        "print({'numpy', 'rich', 'structlog', 'omegaconf', 'msgspec', 'jinja2'} & {*sys.modules}, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment(acme))
    own, others = done.stderr.splitlines()
    assert [name for name in ast.literal_eval(own) if not name.startswith("mappa.cli")] == []
    assert len(ast.literal_eval(own)) == 5, own  # the package, main, and three modules of the list
    assert others == "set()"


def test_log_lines_go_to_the_standard_error_of_the_moment(capsys):
    import structlog

    main(["plugins"])
    capsys.readouterr()
    structlog.get_logger().warning("something.happened")
    said = capsys.readouterr()
    assert "something.happened" in said.err and not said.out
