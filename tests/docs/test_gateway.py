"""What the pages on agents from outside and on MCP servers show works as it stands there."""

import json
import re
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from mappa.cli import main
from mappa.session.toolset import open_tools
from mappa.sessions import compose
from mappa.testing import load_plugins
from mappa_gateway.errors import _STATUS, RequestFault
from mappa_gateway.options import GatewayOptions
from mappa_gateway.wire.chat_completions import ChatRequest
from mappa_gateway.wire.request import _REFUSED, ignored_settings
from mappa_mcp.options import McpOptions

DOCS = Path(__file__).parents[2] / "docs"
PAGE, MCP = (DOCS / "gateway.md").read_text(), (DOCS / "mcp.md").read_text()


def blocks(page, language):
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "my_agent", raising=False)
    return tmp_path


@pytest.fixture
def commands(folder):
    """The two commands of the page, in a folder that holds its files."""
    (program, _), (config,), (commands,) = (blocks(PAGE, language) for language in ("python", "yaml", "bash"))
    (folder / "my_agent.py").write_text(program)
    (folder / "own.yaml").write_text(config)
    return [line.split()[1:] for line in commands.splitlines()]


def test_the_agent_of_the_page_is_tried_and_can_be_trained(commands, capsys):
    tried, trained = commands
    assert main(tried) == 0
    assert capsys.readouterr().out.count("problem_solver, turn 1") == 2
    assert main([*trained, "--dry-run"]) == 0


@pytest.mark.soak
def test_the_agent_of_the_page_learns(commands, capsys):
    """Held-out accuracy before and after, which the page quotes."""
    assert main([*commands[1], "--json"]) == 0
    result = json.loads(capsys.readouterr().out)["eval"]
    with capsys.disabled():
        print(result)
    assert result["n"] == 256
    assert result["gain"]["low"] > 0.1


def test_settings_and_codes_of_the_page_are_those_there_are():
    assert set(GatewayOptions.__dataclass_fields__) <= set(re.findall(r"\w+", PAGE))
    assert set(re.findall(r"\d{3} `(\w+)`", PAGE)) <= set(_STATUS)
    named = {"temperature", "max_tokens", "seed"}
    assert named == ignored_settings(dict.fromkeys(named, 1), ChatRequest)
    refused = re.search(r"\*\*Refused\*\*.*?So are", PAGE, re.DOTALL)[0]
    for name in set(re.findall(r"`(\w+)`", refused)) & {*_REFUSED, "guided_json"}:
        with pytest.raises(RequestFault):
            ignored_settings({name: {"a": 1}}, ChatRequest)


async def test_the_server_of_the_page_is_offered(folder, monkeypatch):
    (program,), (started, there) = blocks(MCP, "python"), blocks(MCP, "yaml")
    (folder / "library_server.py").write_text(program)
    monkeypatch.setenv("LIBRARY_KEY", "key-7")
    (folder / "there.yaml").write_text(there)
    shown = compose(load_plugins(), "mathchat", config_files=["there.yaml"]).config.tools["library"].options
    assert {name for name in McpOptions.__dataclass_fields__ if f"{name}:" in started + there} == {
        "command", "env", "url", "key_env", "only", "prefix",
    }  # fmt: skip
    assert (shown.only, shown.prefix) == (["look_up"], "library_")
    (folder / "started.yaml").write_text(started.replace("[python,", f"[{sys.executable},"))
    config = compose(load_plugins(), "mathchat", config_files=["started.yaml"]).config
    del config.tools["python"]
    async with AsyncExitStack() as stack:
        kit = await open_tools(config, load_plugins(), stack)
        assert kit.toolboxes == {"library": ("look_up",)}
