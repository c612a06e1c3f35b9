"""The page on tracers, done as it says: a LangGraph team, a real Phoenix server, verdicts back on the spans."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from provider import chat_completion, serving

PAGE = (Path(__file__).parents[1] / "docs/how-to/tracers.md").read_text()
START_S = 180
"""How long Phoenix may take to make its database."""
BIN = Path(sys.executable).parent


def answer(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """What one of the three agents of the page says, whom its prompt tells."""
    prompt = messages[0]["content"]
    if "the planner" in prompt:
        return {"role": "assistant", "content": "Look up the price of a ticket, then multiply it by seven."}
    if "the writer" in prompt:
        return {"role": "assistant", "content": "Seven tickets at 48 euros: 7 * 48 = 326. They pay 326 euros."}
    if messages[-1]["role"] == "tool":
        return {"role": "assistant", "content": "One ticket costs 48 euros."}
    call = {"name": "ticket_price", "arguments": '{"city": "Lyon"}'}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": call}]}


@pytest.fixture
def provider() -> Iterator[str]:
    with serving(lambda asked: chat_completion(asked, answer(asked["messages"]))) as place:
        yield f"{place}/v1"


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.fixture
def phoenix(tmp_path: Path) -> Iterator[str]:
    """A Phoenix server of one's own; its place."""
    place = f"127.0.0.1:{free_port()}"
    settings = {
        "PHOENIX_HOST": "127.0.0.1",
        "PHOENIX_PORT": place.rpartition(":")[2],
        "PHOENIX_GRPC_PORT": str(free_port()),
        "PHOENIX_WORKING_DIR": str(tmp_path / "phoenix"),
        "PHOENIX_TELEMETRY_ENABLED": "false",
    }
    with (tmp_path / "phoenix.log").open("w") as log:
        server = subprocess.Popen([BIN / "phoenix", "serve"], env={**os.environ, **settings}, stdout=log, stderr=log)
    try:
        end = time.monotonic() + START_S
        while not is_there(place):
            assert server.poll() is None and time.monotonic() < end, (tmp_path / "phoenix.log").read_text()[-3000:]
            time.sleep(0.5)
        yield place
    finally:
        server.terminate()
        server.wait()


def is_there(place: str, path: str = "projects") -> bool:
    try:
        return httpx.get(f"http://{place}/v1/{path}").status_code == 200
    except httpx.HTTPError:
        return False


def commands_of_page(place: str) -> Iterator[str]:
    """The lines that play, pull, judge and write back, at this server."""
    (block,) = re.findall(r"```bash\n(pip install \"mappa\[phoenix\]\".*?)```", PAGE, re.DOTALL)
    for line in block.splitlines():
        if not line.startswith("pip install"):
            yield line.replace("localhost:6006", place)


def get(place: str, path: str, **query: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = httpx.get(f"http://{place}/v1/{path}", params=query).raise_for_status().json()["data"]
    return found


def do_page(place: str, folder: Path, surrounding: dict[str, str], *, traces: int) -> list[str]:
    """Type the lines of the page; what each printed."""
    told = []
    for line in commands_of_page(place):
        done = subprocess.run(line, shell=True, cwd=folder, env=surrounding, capture_output=True, text=True)
        assert done.returncode == 0, (line, done.stdout, done.stderr)
        told.append(done.stdout)
        while not is_there(place, "projects/tickets/traces") or len(get(place, "projects/tickets/traces")) < traces:
            time.sleep(0.2)  # Phoenix shows what came a moment later.
    return told


@pytest.mark.timeout(600)
def test_the_page_on_tracers_from_end_to_end(phoenix: str, provider: str, tmp_path: Path) -> None:
    (team,) = re.findall(r"```python title=\"team.py\"\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "team.py").write_text(team)
    surrounding = {
        **os.environ,
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "OPENAI_BASE_URL": provider,
        "OPENAI_API_KEY": "none",
        "XDG_STATE_HOME": str(tmp_path / "state"),
    }
    told = do_page(phoenix, tmp_path, surrounding, traces=1)
    assert "“7 * 48 = 326”, it says; the left side is 336." in told[1]
    (trace,) = get(phoenix, "projects/tickets/traces")
    spans = get(phoenix, "projects/tickets/spans", trace_id=trace["trace_id"], limit=100)
    assert {span["status_code"] for span in spans} == {"OK"}, "every span is OK"
    names = {span["context"]["span_id"]: span for span in spans}
    found = get(phoenix, "projects/tickets/span_annotations", span_ids=list(names))
    worst = min(found, key=lambda one: one["result"]["score"])
    assert names[names[worst["span_id"]]["parent_id"]]["name"] == "writer"
    assert worst["result"] == {
        "score": 1.0, "label": "writer", "explanation": "“7 * 48 = 326”, it says; the left side is 336.",
    }  # fmt: skip
    assert (worst["annotator_kind"], worst["metadata"]["judge_package"]) == ("CODE", "mappa-coach-evidence")
    (whole,) = get(phoenix, "projects/tickets/trace_annotations", trace_ids=[trace["trace_id"]])
    assert whole["result"]["label"] == "writer"
    # What came since is pulled and judged, and nothing is written twice.
    do_page(phoenix, tmp_path, surrounding, traces=2)
    assert len(get(phoenix, "projects/tickets/span_annotations", span_ids=list(names))) == len(found)
