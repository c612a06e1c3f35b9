"""Whole runs with a coach behind a real SDK and a provider on this machine that fails, or is not there any more."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from mappa.runs import RunReader
from mappa.sessions import Run
from mappa.testing import WireAnswer, WireRequest, WireServer, json_answer, load_plugins
from mappa.testing.wire_server import GARBAGE, HTML
from mappa_core import Offer, hookimpl
from mappa_engine.local import LocalEngine
from mappa_engine.options import LocalOptions

SMALL = ("train.prompts=3", "train.iterations=2", "checkpoint.every=1", "eval.problems=1", "coach.use=openai")
ONCE = "limits: {attempts: 1, timeout_s: 5.0, breaker_failures: 100000}"


def asked(request: WireRequest) -> str:
    """What a call asks, without what is fresh in every call."""
    return re.sub(r"[0-9a-f]{12,}", "", json.dumps(request.body))


def chance(request: WireRequest, purpose: str) -> float:
    """A number from 0 to 1 that only what is asked decides, whoever asks and when."""
    return int.from_bytes(hashlib.sha256(f"{purpose}{asked(request)}".encode()).digest()[:6]) / 2**48


def saying(text: str, finish: str = "stop", **message: object) -> WireAnswer:
    """A chat completion."""
    choice = {"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": text, **message}}
    usage = {"prompt_tokens": 1000, "completion_tokens": 50, "total_tokens": 1050}
    return json_answer(
        {"id": "1", "object": "chat.completion", "model": "judge-1", "choices": [choice], "usage": usage}
    )


def judging(request: WireRequest) -> WireAnswer:
    """A verdict whose score what is asked decides."""
    score = round(10 * chance(request, "score"), 1)
    return saying(json.dumps({"reasoning": "drawn by lot", "score": score, "blame": None}))


FAULTS = (
    *(json_answer({"error": {"message": "no"}}, status) for status in (400, 401, 403, 404, 408, 413, 429, 500, 503)),
    json_answer({"error": {"message": "empty purse", "code": "insufficient_quota"}}, 429),
    *(WireAnswer(trouble=trouble) for trouble in ("hang", "drop", "noise")),
    WireAnswer(body=b'{"choices": [', trouble="cut"),
    WireAnswer(status=502, headers=HTML.headers, body=HTML.body),
    HTML,
    GARBAGE,
    json_answer({}),
    json_answer({"error": {"message": "overloaded"}}),
    saying("", "length"),
    saying("", "content_filter"),
    saying("", refusal="I would rather not."),
    saying("I give it 9 out of 10."),
    *(saying(f'{{"reasoning": "r", "blame": null, "score": {score}}}') for score in ("11", "-1", "NaN", '"5"', "true")),
    saying('{"reasoning": "r", "blame": "the weather", "score": 5}'),
    saying('{"reasoning": "r", "blame": null, "score": null}'),
)
"""Every way in which a call can come to no score."""


Script = Callable[[WireRequest], WireAnswer]


class ServerThread:
    """A WireServer in a thread of its own, as a run keeps its own event loop."""

    def __init__(self, script: Script) -> None:
        self.server = WireServer(script)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._call(self.server.__aenter__())

    @property
    def url(self) -> str:
        return f"{self.server.url}/v1"

    @property
    def calls(self) -> int:
        return len(self.server.requests)

    def close(self) -> None:
        if self._thread.is_alive():
            self._call(self.server.__aexit__())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _call(self, work) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(30)


@pytest.fixture
def serve() -> Iterator[Callable[[Script], ServerThread]]:
    """Start servers; they end with the test."""
    started: list[ServerThread] = []

    def start(script: Script) -> ServerThread:
        started.append(ServerThread(script))
        return started[-1]

    yield start
    for server in started:
        server.close()


def start(server, root: Path, name: str, *settings: str, registry=None) -> Run:
    options = f"coach.options={{model: judge-1, base_url: '{server.url}', api_key_env: null, {ONCE}}}"
    words = (*SMALL, options, f"run.root={root}", f"run.name={name}", *settings)
    return Run.from_recipe("mathchat/tiny", *words, registry=registry)


def weights(folder: Path) -> dict[str, np.ndarray]:
    files = sorted((folder / "checkpoints" / "000002").rglob("*.safetensors"))
    return {f"{file.parent.name}/{key}": value for file in files for key, value in load_file(file).items()}


class OnlyScored(LocalEngine):
    """Takes the rows without a reward out of the experience before anything is computed from it."""

    async def score(self, experience, *, reference=True):
        from mappa_core.engine import select_rows

        return await super().score(select_rows(experience, np.flatnonzero(experience.weight > 0)))


class Plugin:
    @hookimpl
    def mappa_engines(self):
        yield Offer("only-scored", OnlyScored, LocalOptions)


def test_action_with_a_failed_verdict_does_not_change_the_gradient(serve, tmp_path):
    def failing(request):
        if chance(request, "fault") < 0.2:
            return FAULTS[int(len(FAULTS) * chance(request, "which"))]
        return judging(request)

    server = serve(failing)
    registry = load_plugins(modules={"only": Plugin()})
    settings = ("coach.max_missing=1.0", "train.prompts=8")
    whole = start(server, tmp_path, "whole", *settings, registry=registry).train()
    only_scored = ("engine.use=only-scored", "engine.options={deterministic: true}")
    without = start(server, tmp_path, "without", *settings, *only_scored, registry=registry).train()
    verdicts = recorded(whole.folder)
    missing = [status for status, _ in verdicts.values() if status != "scored"]
    assert 0.08 < len(missing) / len(verdicts) < 0.32
    assert all((status == "scored") == (score is not None) for status, score in verdicts.values())
    assert recorded(without.folder) == verdicts
    ours, theirs = weights(whole.folder), weights(without.folder)
    assert ours.keys() == theirs.keys() and len(ours) > 3
    for name, value in ours.items():
        np.testing.assert_allclose(value, theirs[name], rtol=0, atol=1e-6, err_msg=name)


def recorded(folder: Path) -> dict[str, tuple[str, float | None]]:
    with RunReader(folder) as reader:
        trajectories = [reader.trajectory(row.id) for row in reader.trajectories.where(split="train")]
    return {
        verdict.step: (verdict.status, verdict.score) for trajectory in trajectories for verdict in trajectory.verdicts
    }


def test_every_provider_failure_gives_a_failed_verdict_with_its_reason(serve, tmp_path):
    left = iter(FAULTS * 3)
    server = serve(lambda request: next(left, FAULTS[0]))
    run = start(server, tmp_path, "faults", "coach.max_missing=1.0", "train.iterations=1", "train.prompts=6")
    trained = run.train()
    with RunReader(trained.folder) as reader:
        verdicts = [
            verdict
            for row in reader.trajectories.where(split="train")
            for verdict in reader.trajectory(row.id).verdicts
        ]
    assert trained.summary.status == "done" and verdicts
    assert {verdict.status for verdict in verdicts} <= {"failed", "abstained"}
    assert all(verdict.error or verdict.reasoning for verdict in verdicts)


@pytest.mark.slow
def test_killed_run_resumes_from_the_cassette_without_the_provider(serve, tmp_path):
    server = serve(judging)
    shared = f"coach.cassette.path={tmp_path / 'shared.db'}"
    whole = start(server, tmp_path, "whole", shared).train()
    paid = server.calls
    run = start(server, tmp_path, "killed", shared)
    server.close()
    killed = tmp_path / "killed"
    config = tmp_path / "killed.yaml"
    config.write_text(run.composed.to_yaml())
    command = [sys.executable, "-m", "mappa", "train", "--config", str(config), "--quiet"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    wait_for_verdicts(killed, len(recorded(whole.folder)) // 2, process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    resumed = Run.resume(killed).train()
    assert server.calls == paid
    assert resumed.summary.coach.failed == 0
    assert recorded(killed) == recorded(whole.folder)
    for name, value in weights(whole.folder).items():
        np.testing.assert_array_equal(value, weights(killed)[name], err_msg=name)


def wait_for_verdicts(folder: Path, count: int, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        if (folder / "run.db").exists() and len(recorded(folder)) >= count:
            return
        time.sleep(0.05)
    raise AssertionError("the run ended before it could be killed")


def test_run_writes_and_prints_no_key(serve, tmp_path, monkeypatch, capfd):
    key = "sk-planted-0123456789abcdef"
    monkeypatch.setenv("PLANTED_KEY", key)
    echoes = (401, 429, 500)

    def echoing(request):
        """A gateway that puts the key into its errors, and sometimes into its replies."""
        said = f"bad key {request.headers['authorization']}"
        if chance(request, "fault") < 0.5:
            return json_answer({"error": {"message": said}}, echoes[int(3 * chance(request, "which"))])
        return saying(json.dumps({"reasoning": said, "score": 5, "blame": None}))

    server = serve(echoing)
    settings = ("coach.options.api_key_env=PLANTED_KEY", "coach.max_missing=1.0", "train.iterations=1")
    trained = start(server, tmp_path, "run", *settings).train()
    assert server.calls and all(key in request.headers["authorization"] for request in server.server.requests)
    leaks = [file for file in tmp_path.rglob("*") if file.is_file() and key.encode() in file.read_bytes()]
    assert trained.summary.status == "done" and leaks == []
    assert key not in "".join(capfd.readouterr())
