"""`mappa doctor`."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import click
import pytest

from mappa.cli.doctor import show_checks
from mappa_core import CheckResult
from mappa_engine.cluster.requirements import INSTALL_COMMAND, REQUIRED_RELEASES
from mappa_engine.process_info import installed_version

SECRET = "do-not-tell"


@pytest.fixture(scope="module")
def printed(module_site):
    """What the doctor prints as JSON, beside a good plugin and a broken one."""
    module_site.install("acme")
    module_site.install("acme_broken")
    names = {name: value for name, value in os.environ.items() if name != "OPENAI_API_KEY"}
    environment = {**names, "PYTHONPATH": module_site.python_path, "ACME_API_KEY": SECRET}
    command = [sys.executable, "-m", "mappa", "doctor", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=module_site.folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def found(printed):
    return json.loads(printed)


def test_keys_are_named_and_never_told(found, printed):
    assert found["keys"]["ACME_API_KEY"] == {"ok": True, "detail": "set"}
    assert found["keys"]["OPENAI_API_KEY"] == {"ok": False, "detail": "not set"}
    assert SECRET not in printed


def test_a_program_runs_with_the_python_tool(found):
    assert found["tools"]["python"]["ok"], found["tools"]["python"]["detail"]


def test_the_machine_is_described(found):
    assert {"Python", "platform", "cores", "memory"} <= found["machine"].keys()


def test_the_local_engine_is_usable_where_its_libraries_are(found):
    assert found["libraries"].keys() == {"torch", "transformers", "safetensors"}
    assert found["engines"]["local"]["ok"] == all(one["ok"] for one in found["libraries"].values())


def test_the_cluster_engine_says_what_it_lacks_and_how_to_get_it(found):
    cluster = found["cluster"]
    assert cluster.keys() == REQUIRED_RELEASES.keys()
    assert all(one["ok"] == (installed_version(name) is not None) for name, one in cluster.items())
    lacks = [name for name, one in cluster.items() if not one["ok"]]
    told = f"lacks {', '.join(lacks)}: {INSTALL_COMMAND}" if lacks else "installed"
    assert found["engines"]["cluster"] == {"ok": not lacks, "detail": told}


def test_a_broken_plugin_shows_why(found):
    assert found["plugins"]["acme"]["ok"] is True
    assert found["plugins"]["broken"]["detail"].startswith("acme-broken 0.0.1: ModuleNotFoundError")


def test_the_disk_of_runs_is_looked_at_before_the_folder_exists(found):
    assert found["runs"]["runs"]["ok"] is True
    assert "GiB free, writable" in found["runs"]["runs"]["detail"]


def test_for_people_each_finding_is_a_line(capsys):
    show_checks({"keys": {"ACME_API_KEY": CheckResult(True, "set"), "OPENAI_API_KEY": CheckResult(False, "not set")}})
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["keys"],
        ["yes", "ACME_API_KEY", "set"],
        ["no", "OPENAI_API_KEY", "not", "set"],
    ]


def test_on_a_terminal_a_long_finding_goes_on_below_its_beginning(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "59")
    show_checks({"engines": {"cluster": CheckResult(False, "lacks ray, deepspeed, vllm: pip install mappa-engine")}})
    _, first, second = click.unstyle(capsys.readouterr().out).splitlines()
    assert first == f"  no   {'cluster':<22}lacks ray, deepspeed, vllm:"
    assert second == f"{' ' * 29}pip install mappa-engine"
