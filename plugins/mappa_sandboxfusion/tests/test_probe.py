"""What is found out about a server by running programs there, and the command that prints it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from mappa.cli import main
from mappa.testing import WireAnswer, WireRequest, WireServer, json_answer
from mappa_sandboxfusion.client import FusionClient, ServerFault
from mappa_sandboxfusion.probe import inspect_server, new_folder_name


@pytest.fixture
async def client(fusion: Any) -> AsyncIterator[FusionClient]:
    client = FusionClient(fusion.url, connect_timeout_s=30.0)
    yield client
    await client.close()


async def test_a_server_with_a_bare_environment(client: FusionClient, fusion: Any) -> None:
    name = new_folder_name()
    findings = await inspect_server(client, name)
    assert findings.python == sys.version_info[:3]
    assert findings.keeps_files and findings.as_root == (os.getuid() == 0)
    assert (findings.secrets, findings.others) == ((), ())
    assert findings.root == str(fusion.temp / name)
    (warning,) = findings.warnings
    assert "not kept from each other" in warning


async def test_names_of_a_servers_variables_are_reported_and_their_values_are_not(
    client: FusionClient, fusion: Any
) -> None:
    fusion.environment = {"COACH_API_KEY": "planted-1", "db_password": "planted-2", "EDITOR": "planted-3"}
    findings = await inspect_server(client, new_folder_name())
    assert findings.secrets == ("COACH_API_KEY", "db_password")
    assert findings.others == ("EDITOR",)
    assert "planted" not in repr(findings) + "".join(findings.warnings)
    assert any("COACH_API_KEY, db_password" in warning and "env -i" in warning for warning in findings.warnings)


async def test_a_server_that_keeps_no_files(client: FusionClient, fusion: Any) -> None:
    fusion.keeps = False
    assert not (await inspect_server(client, new_folder_name())).keeps_files


async def test_an_old_python_is_refused_with_advice() -> None:
    def old(request: WireRequest) -> WireAnswer:
        if request.path == "/v1/ping":
            return json_answer("pong")
        word = request.body["code"].split("'")[1]
        result = {
            "status": "Finished",
            "execution_time": 0.1,
            "return_code": 0,
            "stdout": f"{word} 3 8\n",
            "stderr": "",
        }
        return json_answer(
            {"status": "Success", "message": "", "compile_result": None, "run_result": result, "files": {}}
        )

    async with WireServer(old) as server:
        client = FusionClient(server.url, connect_timeout_s=30.0)
        with pytest.raises(ServerFault, match=r"programs get Python 3\.8 there, and need 3\.10 or newer"):
            await inspect_server(client, new_folder_name())
        await client.close()


async def test_a_server_elsewhere_is_warned_of() -> None:
    from mappa_sandboxfusion.probe import Findings

    findings = Findings(
        url="http://10.0.0.7:8080",
        python=(3, 11, 7),
        root="/tmp/x",
        keeps_files=True,
        as_root=False,
        secrets=(),
        others=(),
    )
    assert any("travel in the clear" in warning for warning in findings.warnings)


async def test_folders_of_clients_that_never_came_back_are_removed(client: FusionClient, fusion: Any) -> None:
    long_ago = time.time() - 2 * 24 * 3600
    for name, age in (("mappa-fusion-old", long_ago), ("mappa-fusion-new", time.time()), ("mappa-other", long_ago)):
        (fusion.temp / name).mkdir()
        (fusion.temp / name / "file").write_text("x")
        os.utime(fusion.temp / name, (age, age))
    await inspect_server(client, new_folder_name(), keep=False)
    assert sorted(path.name for path in fusion.temp.iterdir()) == ["mappa-fusion-new", "mappa-other"]


async def test_the_command_says_what_it_found(fusion: Any, capsys: pytest.CaptureFixture[str]) -> None:
    fusion.environment = {"HF_TOKEN": "planted"}
    assert await asyncio.to_thread(main, ["sandboxfusion", "check", fusion.url]) == 0
    said = capsys.readouterr().out
    for words in (f"{fusion.url} runs programs", "kept from one program", "HF_TOKEN"):
        assert words in said
    assert "planted" not in said
    assert await asyncio.to_thread(main, ["sandboxfusion", "check", fusion.url, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["works"] is True and document["secrets"] == ["HF_TOKEN"]
    assert list(fusion.temp.iterdir()) == []


async def test_the_command_fails_where_no_program_runs(fusion: Any, capsys: pytest.CaptureFixture[str]) -> None:
    fusion.programs_work = False
    assert await asyncio.to_thread(main, ["sandboxfusion", "check", fusion.url, "--json"]) == 2
    shown = capsys.readouterr()
    assert json.loads(shown.out)["works"] is False
    assert "no Python here" in shown.err
    assert await asyncio.to_thread(main, ["sandboxfusion", "check", "nonsense"]) == 2
