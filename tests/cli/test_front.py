"""The front: exit codes, messages, signals, and what is not imported."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from importlib.metadata import version

import pytest

from mappa.cli import main
from mappa.cli.main import command_names
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
    """`python -m mappa_core` in a process of its own, with the plugins of `site`."""
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


def test_a_broken_plugin_says_why_when_it_is_called(site, capsys):
    site.install("acme_broken")
    assert main(["broken", "hello"]) == 2
    assert "plugin 'broken' (acme-broken) is broken: ModuleNotFoundError" in capsys.readouterr().err


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


def test_the_help_of_a_plugin_without_commands_says_so(site, capsys):
    site.write("quiet", "")
    assert main(["quiet", "--help"]) == 0
    assert "It has no commands." in capsys.readouterr().out


# --- help -------------------------------------------------------------------------------------------------------------


def test_help_lists_commands_and_plugins(acme, capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"\n  {name} " in out for name in command_names())
    assert "A team that nobody in core knows." in out


def test_help_reads_what_is_installed_once_for_commands_and_once_for_plugins(monkeypatch, capsys):
    read, groups = plugins.entry_points, []
    monkeypatch.setattr(plugins, "entry_points", lambda group: groups.append(group) or read(group=group))
    assert main(["--help"]) == 0
    assert len(groups) <= 3, groups


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


@pytest.mark.parametrize("args", [[], ["--help"], ["plugins"], ["plugins", "--json"], ["config", "--plugin", "acme"]])
def test_nothing_heavy_is_imported(acme, args):
    program = (
        "import sys, json\n"
        "from mappa.cli import main\n"
        f"main({args!r})\n"
        f"print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment(acme))
    assert json.loads(done.stderr.splitlines()[-1]) == []


def test_help_imports_no_plugin_at_all(acme):
    program = "import sys\nfrom mappa.cli import main\nmain(['--help'])\nsys.exit('acme_team' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, env=environment(acme)).returncode == 0


def test_log_lines_go_to_the_standard_error_of_the_moment(capsys):
    import structlog

    main(["plugins"])
    capsys.readouterr()
    structlog.get_logger().warning("something.happened")
    said = capsys.readouterr()
    assert "something.happened" in said.err and not said.out
