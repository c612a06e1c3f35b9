"""The run that is shipped: small, of the present form, and shown at a play that failed with somebody to blame."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from urllib.request import HTTPCookieProcessor, build_opener

import pytest
from starlette.testclient import TestClient

from mappa.cli import main
from mappa.look.demo import unpack_demo
from mappa.look.view.web.app import create_app
from mappa.look.view.web.run_folders import RunFolders
from mappa.look.view.web.telling import telling_address
from mappa.runs import RunReader
from mappa_core import RunError


@pytest.fixture(scope="module")
def demo(tmp_path_factory) -> Path:
    return unpack_demo(tmp_path_factory.mktemp("demo"))


def test_demo_run_is_small_done_and_names_no_local_path(demo):
    assert len(files("mappa.look.demo").joinpath("run.tar.gz").read_bytes()) < 300_000
    with RunReader(demo) as reader:
        assert reader.summary.status == "done" and len(list(reader.iterations)) == 8
        assert "/tmp" not in reader.config and "/home" not in reader.config


def test_a_reader_begins_at_a_failure_with_blame(demo):
    client = TestClient(create_app(RunFolders([demo]), token="t"), base_url="http://127.0.0.1")
    page = client.get(f"{telling_address(demo)}&token=t").text
    assert "blames problem_solver" in page and "correct</span> 0" in page
    listed = client.get("/runs/demo")
    assert listed.url.query == b"split=train&outcome=short%3Acorrect"
    assert "Ana has 6 cards" in listed.text
    assert "ranks by correct" in client.get("/runs/demo/coach").text


def test_demo_never_overwrites_a_folder(demo):
    with pytest.raises(RunError, match="is there already"):
        unpack_demo(demo.parent)


def test_the_command_shows_the_page_whose_address_it_says(tmp_path):
    command = [sys.executable, "-m", "mappa", "demo"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            address = re.search(r"http://127\.0\.0\.1:\S+", server.stdout.readline())[0]
            with build_opener(HTTPCookieProcessor()).open(address, timeout=60) as page:
                assert b"blames problem_solver" in page.read()
        finally:
            server.send_signal(signal.SIGINT)
    assert server.returncode == 130


def test_demo_to_keeps_the_run_in_a_folder(tmp_path, capsys):
    assert main(["demo", "--to", str(tmp_path)]) == 0
    assert f"mappa view {tmp_path / 'demo'}" in capsys.readouterr().out
    assert main(["report", str(tmp_path / "demo")]) == 0
