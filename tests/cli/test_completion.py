"""What a shell is told when it asks how a line may go on."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
from click.shell_completion import get_completion_class

from mappa.cli import main
from mappa.cli.command_table import FIRST
from mappa.cli.completion import COMPLETION_VARIABLE
from mappa.cli.main import cli


def completed(*words: str) -> list[str]:
    """How the last of `words` may go on."""
    *before, last = words
    shell = get_completion_class("bash")(cli, {}, "mappa", COMPLETION_VARIABLE)
    return [item.value for item in shell.get_completions(before, last)]


def test_commands_of_core_and_of_plugins_are_completed(acme):
    assert set(completed("")) >= {*FIRST, "improve", "acme"}
    assert completed("compl") == []  # not listed
    assert completed("acme", "hel") == ["hello"]


def test_to_name_commands_none_is_imported(acme, monkeypatch):
    monkeypatch.setattr("mappa.cli.command_group.load_command", None)
    assert completed("trai") == ["train"] and completed("ac") == ["acme"]


@pytest.mark.parametrize("command", ["observe", "compare", "export", "judge", "advise"])
def test_a_run_is_completed_as_a_folder(command):
    (item,) = get_completion_class("bash")(cli, {}, "mappa", COMPLETION_VARIABLE).get_completions([command], "ru")
    assert (item.value, item.type) == ("ru", "file")


def test_a_plugin_that_is_left_out_is_not(acme):
    assert "acme" not in completed("--block", "acme", "")


def test_options_and_names_are_completed(acme):
    assert completed("train", "--plug") == ["--plugin"]
    assert completed("train", "--plugin", "acm") == ["acme"]
    assert completed("completion", "") == ["bash", "zsh", "fish"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_asks_by_the_variable_that_is_listened_to(shell, capsys):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert f"{COMPLETION_VARIABLE}={shell}_complete" in script and "mappa" in script


def test_a_shell_that_is_unknown_is_named(capsys):
    assert main(["completion", "tcsh"]) == 2
    assert "'tcsh' is not one of" in capsys.readouterr().err


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_with_it(acme, tmp_path):
    """The whole way: bash reads the script, calls the function in it, and that calls `mappa`."""
    program = tmp_path / "mappa"
    program.write_text(f"#!{sys.executable}\nimport sys\nfrom mappa.cli import main\nsys.exit(main())\n")
    program.chmod(0o755)
    line = (
        'eval "$(mappa completion bash)"; COMP_WORDS=(mappa observe --plug); COMP_CWORD=2; '
        '_mappa_completion mappa; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    environment = {**os.environ, "PYTHONPATH": acme.python_path, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, env=environment)
    assert done.stdout.splitlines() == ["--plugin"], done.stderr
