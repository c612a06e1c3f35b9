"""Which cage programs get, and what is said where there is none."""

import os
import sys
from pathlib import Path

import pytest

from mappa_core import ConfigError, ToolError, ToolLimits
from mappa_core.sandbox import FolderWorkspace
from mappa_sandbox import choose_sandbox
from mappa_sandbox.isolation.bubblewrap import FOR_CAT
from mappa_sandbox.options import PythonOptions
from mappa_sandbox.tool import PythonTool


async def opened(**options):
    tool = PythonTool(PythonOptions(**options))
    try:
        return await tool.open()
    finally:
        await tool.close()


@pytest.fixture
def no_cages(monkeypatch):
    """No `bwrap`, no Landlock."""
    monkeypatch.setattr(choose_sandbox.shutil, "which", lambda name: None)
    monkeypatch.setattr(choose_sandbox.landlock, "abi_version", lambda: 0)


async def test_the_first_sandbox_that_works_is_used(monkeypatch):
    monkeypatch.setattr(choose_sandbox.shutil, "which", lambda name: None)
    assert (await opened()).name == "landlock"


async def test_a_sandbox_that_does_not_work_is_skipped(monkeypatch, tmp_path):
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'No permissions to create a new namespace' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(choose_sandbox.shutil, "which", lambda name: str(broken))
    assert (await opened()).name == "landlock"
    with pytest.raises(ConfigError, match=r"bubblewrap: .*No permissions to create a new namespace"):
        await opened(sandbox="bubblewrap")


async def test_without_a_sandbox_the_error_says_why_and_what_to_do(no_cages):
    with pytest.raises(ConfigError) as refused:
        await opened()
    message = str(refused.value)
    assert "bubblewrap: bwrap was not found" in message
    assert "landlock: this kernel has no Landlock" in message
    assert "apt install bubblewrap" in message and "allow_unsafe=true" in message


async def test_with_allow_unsafe_programs_run_without_a_sandbox_and_a_warning_says_so(no_cages, tmp_path):
    tool = PythonTool(PythonOptions(allow_unsafe=True))
    sandbox = await tool.open()
    assert sandbox.name == "none" and "not caged" in sandbox.warnings[0]
    assert sandbox.detail.startswith("bubblewrap: bwrap was not found; landlock: ")
    result = await tool.call({"code": "print(1)"}, FolderWorkspace(tmp_path / "w"), ToolLimits())
    assert (result.stdout, result.sandbox) == ("1\n", "none")
    await tool.close()


async def test_with_allow_unsafe_a_sandbox_that_works_is_still_used():
    assert (await opened(allow_unsafe=True)).name != "none"


async def test_sandbox_none_needs_allow_unsafe():
    with pytest.raises(ConfigError, match="sandbox=none needs allow_unsafe=true"):
        await opened(sandbox="none")


@pytest.mark.parametrize("options", [{}, {"sandbox": "none", "allow_unsafe": True}])
async def test_another_system_than_linux_is_refused(options, monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(ConfigError, match="the tool python runs programs on Linux only"):
        await opened(**options)


async def test_another_system_than_linux_is_why_no_backend_works(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    for reason in (await choose_sandbox.survey_backends()).values():
        assert "on Linux only, and this is darwin" in str(reason)


async def test_a_sandbox_from_which_the_probe_escapes_is_not_used(monkeypatch):
    monkeypatch.setattr(choose_sandbox, "PROBE", choose_sandbox.PROBE.replace("escapes = []", "escapes = ['fly']"))
    with pytest.raises(ConfigError, match="a program in it could fly"):
        await opened()


async def test_an_older_landlock_works_with_a_warning_that_says_what_is_open(monkeypatch):
    monkeypatch.setattr(choose_sandbox.landlock, "abi_version", lambda: 5)
    sandbox = await opened(sandbox="landlock")
    assert sandbox.detail.startswith("Landlock ABI 5 and seccomp; ")
    # As root programs run as another user, who can signal nobody.
    assert any("signal" in warning for warning in sandbox.warnings) == (os.geteuid() != 0)


async def test_a_module_that_cannot_be_preloaded_is_named():
    with pytest.raises(ConfigError, match="preload: cannot import 'numppy': ModuleNotFoundError"):
        await opened(preload=["json", "numppy"])
    await opened(preload=["json", "numppy?", "numppy.more?"])


async def test_a_hidden_path_that_is_nowhere_is_named():
    with pytest.raises(ConfigError, match="hidden_paths: 'numpy/datta' is not there"):
        await opened(hidden_paths=["numpy/datta"])


def test_an_optional_hidden_path_is_hidden_where_it_exists():
    assert choose_sandbox.resolve_hidden(["numpy/datta?"]) == ()
    assert len(choose_sandbox.resolve_hidden(["numpy/version.py?"])) == 1


async def test_nothing_can_be_hidden_without_a_sandbox(no_cages):
    with pytest.raises(ConfigError, match="hidden_paths cannot be kept without a sandbox"):
        await opened(hidden_paths=["numpy/version.py"], allow_unsafe=True)


def test_hidden_paths_are_absolute_or_of_a_package(tmp_path):
    import numpy

    (tmp_path / "link").symlink_to(tmp_path)
    found = choose_sandbox.resolve_hidden(["numpy/version.py", str(tmp_path / "link"), str(tmp_path)])
    assert found == (str(Path(numpy.__file__).resolve().parent / "version.py"), str(tmp_path.resolve()))


def test_the_interpreter_and_its_packages_are_readable_and_home_is_not():
    places = choose_sandbox.readable_paths()
    assert all(os.path.lexists(place) for place in places)
    for wanted in (os.path.realpath(sys.executable), os.__file__, pytest.__file__):
        assert any(wanted.startswith(f"{place}/") for place in places)
    assert not {"/", "/etc", "/home", "/root", "/tmp", str(Path.home())} & set(places)
    assert [place for place in places for other in places if place.startswith(f"{other}/")] == []


def test_of_the_prefix_of_a_system_python_the_listed_parts_are_readable(monkeypatch):
    for prefix in ("prefix", "base_prefix", "exec_prefix"):
        monkeypatch.setattr(sys, prefix, "/usr")
    monkeypatch.setattr(sys, "executable", "/usr/bin/python3")
    places = choose_sandbox.readable_paths()
    assert "/usr" not in places
    assert {path for path in FOR_CAT if os.path.lexists(path)} <= {*places}


async def test_the_program_for_warming_up_runs_once_before_all_others(tmp_path):
    warm_up = tmp_path / "warm_up.py"
    warm_up.write_text(
        "import json, os\njson.warm = os.getpid()\nopen('written', 'w').close()\nprint('not for programs')"
    )
    tool = PythonTool(PythonOptions(warm_up=str(warm_up)))
    code = "import json, os\nprint(json.warm != os.getpid(), json.warm, os.listdir())"
    results = [await tool.call({"code": code}, FolderWorkspace(tmp_path / name), ToolLimits()) for name in "ab"]
    await tool.close()
    assert results[0].stdout == results[1].stdout
    assert results[0].stdout.startswith("True ") and results[0].stdout.endswith(" []\n")
    assert not Path("written").exists()


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("nowhere.py", "warm_up: cannot read 'nowhere.py': .*No such file"),
        ("package:mappa_nowhere/a.py", "warm_up: cannot read 'package:mappa_nowhere/a.py': No module named"),
        ("fails.py", "warm_up: the program failed in line 2: ZeroDivisionError: division by zero"),
        ("wrong.py", r"warm_up: the program failed: SyntaxError: .*line 1"),
    ],
)
async def test_a_warm_up_that_fails_is_reported_with_its_line(spec, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("fails.py").write_text("a = 1\na / 0\n")
    Path("wrong.py").write_text("a = = 1\n")
    with pytest.raises(ConfigError, match=said):
        await opened(warm_up=spec)


async def test_preloaded_modules_are_there_and_are_started_afresh(tmp_path):
    tool = PythonTool(PythonOptions(preload=["random", "numpy.random", "tempfile"]))
    code = (
        "import random, sys, tempfile\nprint('numpy' in sys.modules)\nimport numpy\n"
        "print(random.random(), numpy.random.random())\nopen(tempfile.mktemp(), 'w').close()"
    )
    results = [
        await tool.call({"code": code}, FolderWorkspace(tmp_path / name), ToolLimits()) for name in ("a", "b", "c")
    ]
    await tool.close()
    assert [result.status for result in results] == ["ok"] * 3, results
    drawn = [result.stdout.splitlines() for result in results]
    assert [lines[0] for lines in drawn] == ["True"] * 3
    assert len({lines[1] for lines in drawn}) == 3


async def test_a_probe_that_fails_is_reported_with_its_output(monkeypatch):
    monkeypatch.setattr(choose_sandbox, "PROBE", "raise SystemExit('no luck')")
    with pytest.raises(ToolError, match="a first program failed in it: no luck"):
        await choose_sandbox.try_backend("none", (), ())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs programs as another user")
async def test_a_task_file_that_others_may_not_read_is_named(tmp_path):
    (tmp_path / "train.csv").write_text("a\n")
    (tmp_path / "train.csv").chmod(0o600)
    tool = PythonTool(PythonOptions(sandbox="bubblewrap"))
    workspace = FolderWorkspace(tmp_path / "w", inputs={"train.csv": tmp_path / "train.csv"})
    with pytest.raises(ToolError, match=r"train.csv must be readable for other users, .*: chmod o\+r"):
        await tool.call({"code": "print(1)"}, workspace, ToolLimits())
    (tmp_path / "train.csv").chmod(0o644)
    result = await tool.call({"code": "print(open('train.csv').read())"}, workspace, ToolLimits())
    assert result.stdout == "a\n\n"
    await tool.close()


def test_workers_must_be_positive():
    with pytest.raises(ConfigError, match="workers of the tool python must be at least 1, not 0"):
        PythonTool(PythonOptions(workers=0))
