"""A teacher on a real server of vLLM gives the scores that the engine gives where it loads the model itself."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from mappa_core.engine import PolicySpec, TrainSection
from mappa_engine.local import LocalEngine
from mappa_engine.options import LocalOptions, TeacherServer
from mappa_engine.teacher_servers import TeacherServers
from mappa_engine.testing import build_experience, random_rows

from .conftest import WINDOW

STARTS_S = 240


@pytest.fixture
def server(qwen3: str, tmp_path: Path) -> Iterator[str]:
    """The address of a server that holds the model `qwen3`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", qwen3, "--served-model-name", "mentor",
        "--host", "127.0.0.1", "--port", address.rpartition(":")[2], "--dtype", "float32",
        "--max-model-len", str(WINDOW), "--enforce-eager",
    ]  # fmt: skip
    environment = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen(command, env=environment, stdout=log, stderr=log) as running,
    ):
        try:
            ends = time.monotonic() + STARTS_S
            while not answers(f"{address}/health"):
                assert running.poll() is None and time.monotonic() < ends, (tmp_path / "log").read_text()[-3000:]
                time.sleep(0.5)
            yield address
        finally:
            running.terminate()


def answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


async def test_server_scores_equal_the_engines(server, qwen3):
    experience = build_experience(random_rows(20, policy="mentor", tokens=(3, 200)), policies=("mentor",))
    mentor = PolicySpec(name="mentor", model=qwen3, kind="frozen")
    engine = LocalEngine(LocalOptions(device="cpu"))
    await engine.open([mentor], TrainSection(), seed=0)
    expected = (await engine.score(experience)).old_logprobs
    await engine.close()
    teachers = TeacherServers({"mentor": TeacherServer(base_url=f"{server}/v1", model="mentor")})
    await teachers.open([mentor], learning=True)
    found = (await teachers.score(experience)).old_logprobs
    await teachers.close()
    assert expected is not None and found is not None
    np.testing.assert_allclose(found, expected, atol=1e-4)
