"""What the plugin offers, and what loading it costs."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import mappa_sandboxfusion
from mappa.testing import load_plugins
from mappa_core import ConfigError, Tool
from mappa_core.sandbox import Sandboxed
from mappa_sandboxfusion.command import command
from mappa_sandboxfusion.options import LOCAL_URL, Options


def test_the_plugin_is_a_tool_that_runs_programs() -> None:
    registry = load_plugins(only=["sandboxfusion"])
    assert not registry.broken
    assert registry.offer("tools", "sandboxfusion").options().urls == [LOCAL_URL]
    tool = registry.build("tools", "sandboxfusion")
    assert isinstance(tool, Tool) and isinstance(tool, Sandboxed)
    assert [*command.commands] == ["check"]


def test_loading_it_imports_nothing_heavy() -> None:
    code = (
        "import sys, mappa_core.plugins as plugins\n"
        "assert 'sandboxfusion' in plugins.load_plugins(only=['sandboxfusion']).plugins\n"
        "print(sorted({'aiohttp', 'msgspec'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "aiohttp" not in done.stdout


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"urls": []}, "name at least one"),
        ({"urls": ["127.0.0.1:8080"]}, "is no http"),
        ({"urls": ["ftp://host"]}, "is no http"),
        ({"urls": ["http://host:port"]}, "is no http"),
        ({"urls": ["http://host?x=1"]}, "is no http"),
        ({"urls": ["http://me:secret@host"]}, "no place in an address"),
        ({"urls": ["http://host:1", "http://host:1/"]}, "names a server twice"),
        ({"concurrency": 0}, "concurrency: must be more than 0"),
        ({"attempts": -1}, "attempts: must be more than 0"),
        ({"margin_s": float("nan")}, "margin_s: must be more than 0"),
        ({"backoff_s": 2.0, "max_backoff_s": 1.0}, "max_backoff_s: must be at least backoff_s"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(options: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        Options(**options).check()  # type: ignore[arg-type]
    assert "secret" not in str(refused.value)


REMOTE = sorted((Path(mappa_sandboxfusion.__file__).parent / "remote").glob("*.py"))


@pytest.mark.parametrize("path", REMOTE, ids=lambda path: path.name)
def test_what_runs_on_servers_needs_python_3_10_and_its_library_alone(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 10))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    others = {name for name in imported if name.partition(".")[0] not in sys.stdlib_module_names}
    assert all(name.startswith("mappa_sandboxfusion.remote.") for name in others)
