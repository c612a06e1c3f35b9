"""Parts of this project that are not there, as far as core can tell: left out with --block."""

import json
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError
from importlib.resources import files

import pytest

from mappa.cli import doctor, main
from mappa.testing import load_plugins

PARTS = ("look", "calibration", "engine", "gateway", "gepa", "mcp", "sandbox")
FIRST_PARTY = tomllib.loads(files("mappa_core").joinpath("first_party.toml").read_text("utf-8"))
KINDS = sorted(FIRST_PARTY.keys() - {"commands", "plugins"})


def blocked(*parts):
    return [word for part in parts for word in ("--block", part)]


@pytest.mark.parametrize(("command", "package"), FIRST_PARTY["commands"].items())
def test_a_command_says_what_installs_it(command, package, capsys):
    part, words = package.removeprefix("mappa-").removeprefix("coach-").partition("[")[0], command.split(".")
    assert main([*blocked(part), *words, "anything"]) == 2
    error = capsys.readouterr().err
    assert f'mappa {" ".join(words)} comes with {package}: pip install "{package}"' in error
    assert "Traceback" not in error


EXTRAS = [
    (("view", "{run}"), "starlette", "mappa[view]"),
    (("view", "{run}"), "uvicorn", "mappa[view]"),
    (("demo", "--open"), "uvicorn", "mappa[view]"),
    (("export", "{run}", "--to", "sft", "--out", "{run}-data"), "pyarrow", "mappa[data]"),
    (("coach", "calibrate", "--run", "{run}", "--coach", "evidence", "--out", "{run}.json"), "sklearn",
     "mappa-calibration[jury]"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "package", "extra"), EXTRAS)
def test_a_command_names_the_extra_that_it_needs(words, package, extra, tmp_path):
    """In a process of its own, in which nothing of the package has been imported."""
    given = [word.format(run=tmp_path / "demo") for word in words]
    program = (
        "import sys\n"
        "from mappa.cli import main\n"
        f"main(['demo', '--to', {str(tmp_path)!r}])\n"
        f"sys.modules[{package!r}] = None  # as if it were not installed\n"
        f"sys.exit(main({given!r}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert f'pip install "{extra}"' in done.stderr and "Traceback" not in done.stderr


def test_help_does_not_list_the_commands_of_what_is_not_there(capsys):
    assert main([*blocked(*PARTS), "--help"]) == 0
    out = capsys.readouterr().out
    listed = {name for line in out.splitlines() if line.startswith("  ") for name in line.replace(",", "").split()}
    assert {"train", "doctor"} <= listed
    assert not listed & FIRST_PARTY["commands"].keys()


def test_what_first_party_packages_offer_is_what_they_are_said_to_offer():
    registry = load_plugins()
    packages = {plugin.package: plugin for plugin in registry.plugins.values()}
    for kind in KINDS:
        for name, package in FIRST_PARTY[kind].items():
            assert name in packages[package.partition("[")[0]].offers[kind], f"{kind}: {name}"
    assert {registry.plugin(name).package for name in FIRST_PARTY["plugins"]} == set(FIRST_PARTY["plugins"].values())


def test_a_recipe_lists_all_that_it_lacks(capsys):
    assert main([*blocked("engine", "sandbox"), "train", "--plugin", "dsbench"]) == 2
    error = capsys.readouterr().err
    assert (
        "tools.python.use: no tool is called 'python'. It comes with mappa-sandbox: pip install \"mappa-sandbox\""
        in (error)
    )
    assert "engine.use: no engine is called" in error and "loss.use: no loss is called" in error


def test_a_plugin_of_this_project_says_what_installs_it(capsys):
    assert main([*blocked("gateway"), "train", "--recipe", "gateway/gateway"]) == 2
    assert "the plugin 'gateway' is not installed: pip install mappa-gateway" in capsys.readouterr().err


def test_the_doctor_checks_what_is_there_and_names_the_rest(capsys, monkeypatch):
    def version(package):
        if package in ("mappa-engine", "mappa-gateway"):
            raise PackageNotFoundError(package)
        return "0.1.0"

    monkeypatch.setattr(doctor, "version", version)
    assert main([*blocked("engine", "sandbox", "gateway"), "doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found.keys() == {"machine", "keys", "runs", "plugins"}
    assert found["plugins"]["mappa-engine"] == {
        "ok": False,
        "detail": "not installed: pip install mappa-engine brings shapers truncation_filter; estimators distill, "
        "gdpo, maxrl; losses ppo, gspo, cispo, sapo, vespo; engines local, cluster",
    }
    assert found["plugins"]["mappa-gateway"]["detail"].endswith("brings workflows gateway; commands gateway")
