"""Calls in the kernel of a real notebook: what a cell shows of an error, of a training and of an interrupt."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

import mappa

jupyter_client = pytest.importorskip("jupyter_client")
pytest.importorskip("ipykernel")

TEAM = """
import mappa
from tests.notebook.conftest import OBJECTS, SHORT
settings = {**SHORT, "run": {"root": %r}}
"""
DEADLINE_S = 120


@pytest.fixture
def cell(tmp_path):
    """Runs the code of a cell and returns its outputs, as (type, content); `interrupt` is sent once `text` is shown."""
    environment = {**os.environ, "IPYTHONDIR": str(tmp_path), "JUPYTER_RUNTIME_DIR": str(tmp_path)}
    root = str(Path(__file__).parents[2])
    environment["PYTHONPATH"] = os.pathsep.join((root, environment.get("PYTHONPATH", "")))
    manager = jupyter_client.KernelManager()
    manager.start_kernel(env=environment, cwd=str(tmp_path))
    client = manager.client()
    client.start_channels()

    def run(code, interrupt_at=None):
        request, outputs, deadline = client.execute(code), [], time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            message = client.get_iopub_msg(timeout=DEADLINE_S)
            if message["parent_header"].get("msg_id") != request:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "status" and content["execution_state"] == "idle":
                return outputs
            outputs.append((kind, content))
            if interrupt_at is not None and interrupt_at in str(content):
                manager.interrupt_kernel()
                interrupt_at = None
        raise TimeoutError(outputs)

    try:
        client.wait_for_ready(timeout=DEADLINE_S)
        run(TEAM % str(tmp_path / "runs"))
        yield run
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


@pytest.mark.slow
def test_a_cell_shows_bars_the_message_of_an_error_and_how_to_go_on_after_an_interrupt(cell):
    *_, (kind, error) = cell("mappa.train(**OBJECTS, **{**settings, 'train': {'iteration': 3}})")
    assert kind == "error" and error["ename"] == "ConfigError"
    assert error["traceback"] == [f"ConfigError: {error['evalue']}"], "and no line of Mappa's own"

    slow = "import time\nslow = {**OBJECTS, 'coach': lambda scene: time.sleep(0.1) or 5}\n"
    endless = "mappa.train(**slow, **{**settings, 'train': {'iterations': 1000, 'prompts': 2}})"
    outputs = cell(slow + endless, interrupt_at="2/1000 iterations")
    assert any("rollouts" in content["data"]["text/html"] for kind, content in outputs if kind == "display_data")
    kind, error = outputs[-1]
    assert (kind, error["ename"]) == ("error", "KeyboardInterrupt")
    assert error["traceback"] == [f"KeyboardInterrupt: {error['evalue']}"]
    assert error["evalue"].startswith("nothing is lost; go on with mappa.train(resume='")
    folder = error["evalue"].split("'")[1]
    assert mappa.TrainedRun.read(folder).summary.status == "stopped"

    quick = "quick = {**OBJECTS, 'coach': lambda scene: 5}\n"
    go_on = f"mappa.train(resume={folder!r}, **quick, train={{'iterations': 20}}, progress=False)"
    *_, (kind, shown) = cell(quick + go_on)
    assert kind == "execute_result" and "done after 20 iterations" in shown["data"]["text/plain"]
