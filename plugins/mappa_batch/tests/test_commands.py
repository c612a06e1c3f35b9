"""What users type, in batches of a local OpenAI: observe, judge, coach eval, improve; killed, and begun again."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from mappa.cli import main
from mappa.runs import RunReader
from mappa_batch.testing import OpenAIServer

VERDICT = json.dumps({"reasoning": "It did as it was told.", "blame": None, "score": 7})
PRICE = "{input: 10, output: 20}"
USD_PER_CALL = 0.5 * (100 * 10 + 10 * 20) / 1_000_000  # of the server's 100 and 10 tokens, at half the price
BATCHES = "{quiet_s: 0.4, poll_s: 0.1}"
MARK = re.compile(r"[0-9a-f]{16}")


def coach(server: OpenAIServer, prefix: str = "", **options: str) -> list[str]:
    """Words that name the server as a coach's or policy's model."""
    chosen = {"model": "m", "base_url": f"{server.url}/v1", "price": PRICE, "batch_api": BATCHES, **options}
    return [f"{prefix}{key}={value}" for key, value in chosen.items()]


OBSERVE = ("observe", "--plugin", "gepa", "--json", "eval.problems=5")
"""Three agents, who are no models and overlook nothing, do five tasks."""
SURE = "policies.default.options.slip=0"


def observing(server: OpenAIServer, *words: str) -> list[str]:
    return [*OBSERVE, SURE, "coach.use=openai", *coach(server, "coach.options."), *words]


async def start(folder: Path, *words: str) -> asyncio.subprocess.Process:
    environment = {**os.environ, "OPENAI_API_KEY": "planted-key", "COLUMNS": "200", "OMP_NUM_THREADS": "1"}
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "mappa", *words, cwd=folder, env=environment, stdout=pipe, stderr=pipe
    )


async def mappa(folder: Path, *words: str) -> tuple[str, str]:
    """Run a command to its end; return its output and its errors."""
    process = await start(folder, *words)
    out, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    assert "planted-key" not in out.decode() + errors.decode()
    return out.decode(), errors.decode()


async def killed(server: OpenAIServer, folder: Path, *words: str) -> None:
    """Run a command, and `kill -9` it while it polls a batch that does not end."""
    server.held = True
    before = len(server.requests)
    process = await start(folder, *words)
    communicating = asyncio.create_task(process.communicate())
    try:
        async with asyncio.timeout(120.0):
            while len([request for request in server.requests[before:] if request[0] == "GET"]) < 3:
                assert process.returncode is None, (await communicating)[1].decode()
                await asyncio.sleep(0.05)
    finally:
        process.kill()
        await communicating
    server.held = False


def asked(server: OpenAIServer) -> Counter[str]:
    """How often each question was asked, whatever the marks of its fences."""
    return Counter(MARK.sub("MARK", question) for question in server.calls)


def verdicts_of(run: Path, phase: str) -> list[tuple[str, float | None]]:
    """Status and cost of the verdicts of a phase."""
    with RunReader(run) as reader:
        stored = [reader.trajectory(row.id) for row in reader.trajectories]
    verdicts = [verdict for trajectory in stored for verdict in trajectory.verdicts if verdict.phase == phase]
    return [(verdict.status, None if verdict.usage is None else verdict.usage.usd) for verdict in verdicts]


@pytest.fixture
def server() -> OpenAIServer:
    return OpenAIServer(lambda question: VERDICT, polls=2)


@pytest.mark.slow
async def test_a_team_is_observed_in_batches(server: OpenAIServer, tmp_path: Path) -> None:
    """Killed while polling and begun again: with a cassette of its own name the second start asks nobody again."""
    words = ("coach.cassette.path=kept/verdicts.db",)
    async with server:
        await killed(server, tmp_path, *observing(server, "run.name=first", *words))
        assert (tmp_path / "kept/batches.db").exists()
        out, errors = await mappa(tmp_path, *observing(server, "run.name=second", *words))
    assert "replies come in batches, minutes to a day after the calls" in errors
    assert "batch.taken_up" in errors
    assert len(server.batches) == 1
    assert set(asked(server).values()) == {1}
    found = verdicts_of(tmp_path / "runs/second", "live")
    assert [status for status, _ in found] == ["scored"] * 15
    assert sum(usd or 0.0 for _, usd in found) == pytest.approx(15 * USD_PER_CALL)
    assert json.loads(out)["rollouts"] == 5
    assert not (tmp_path / "kept/batches.db").exists()


@pytest.mark.slow
async def test_a_run_is_judged_again_in_batches(server: OpenAIServer, tmp_path: Path) -> None:
    """Killed while polling and begun again, with half of the calls failing once."""
    server.fates = lambda batch, call: "errored" if batch == 0 and call % 2 else "answered"
    async with server:
        await mappa(
            tmp_path, *observing(server, "run.name=x", "coach.use=relay-duties", "coach.options=null")[:6], "run.name=x"
        )
        again = ["judge", "runs/x", "--split", "eval", "--coach", "openai", "--json", *coach(server)]
        await killed(server, tmp_path, *again)
        out, errors = await mappa(tmp_path, *again)
    assert "batch.taken_up" in errors
    result = json.loads(out)
    assert result["counts"]["scored"] == 15
    assert len(server.batches) == 2
    # Seven of fifteen failed in the first batch, and were made again in the second.
    assert Counter(asked(server).values()) == {1: 8, 2: 7}
    found = verdicts_of(tmp_path / "runs/x", "again")
    assert [status for status, _ in found] == ["scored"] * 15
    assert sum(usd or 0.0 for _, usd in found) == pytest.approx(15 * USD_PER_CALL)
    assert not (tmp_path / "runs/x/batches.db").exists()


@pytest.mark.slow
async def test_a_coach_is_evaluated_in_batches(server: OpenAIServer, tmp_path: Path) -> None:
    """Every repeat is a call of its own, and all of them share a batch, also after a kill."""
    async with server:
        await mappa(tmp_path, *OBSERVE, SURE, "run.name=x")
        words = ["coach", "eval", "--run", "runs/x", "--coach", "a=openai", "--repeats", "3", "--json"]
        await killed(server, tmp_path, *words, *coach(server, "a."))
        out, _ = await mappa(tmp_path, *words, *coach(server, "a."))
    assert len(server.batches) == 1
    assert Counter(asked(server).values()) == {3: 15}
    assert (json.loads(out)["actions"], json.loads(out)["repeats"]) == (15, 3)
    assert not (tmp_path / "batches.db").exists()


@pytest.mark.slow
async def test_policies_act_in_batches(tmp_path: Path) -> None:
    """A wave of actions is a batch: three agents, one after another, of five tasks each."""
    server = OpenAIServer(lambda question: "word", polls=1)
    async with server:
        policy = ["policies.default.use=openai", *coach(server, "policies.default.options.")]
        out, _ = await mappa(tmp_path, *OBSERVE, *policy)
    assert [len(batch.calls) for batch in server.batches] == [5, 5, 5]
    assert json.loads(out)["rollouts"] == 5


async def test_a_cap_that_has_no_room_for_a_call_submits_none(server: OpenAIServer, tmp_path: Path) -> None:
    async with server:
        free = "policies.default.options.price={input: 0, output: 0}"
        process = await start(tmp_path, *observing(server, "run.name=x", "coach.spend_usd=0.0001", free))
        _, errors = await process.communicate()
    assert process.returncode == 3
    assert b"all 15 verdicts failed, 15 of them by this: spend: coach.spend_usd=0.0001" in errors
    assert not server.batches
    found = verdicts_of(tmp_path / "runs/x", "live")
    assert found == [("failed", None)] * 15


@pytest.mark.slow
async def test_prompts_are_improved_with_a_coach_in_batches(server: OpenAIServer, tmp_path: Path) -> None:
    """The search goes on after a kill from what it has recorded, and every question was asked once."""
    sizes = ["--rollouts", "60", "--propose", "8", "--choose", "4", "--report", "6", "--minibatch", "2"]
    words = ["improve", "--plugin", "gepa", "--proposer", "instruction-editor", "--name", "x", "--json", *sizes]
    words += ["--patience", "2", "coach.use=openai"]
    async with server:
        await killed(server, tmp_path, *words, *coach(server, "coach.options."))
        out, errors = await mappa(tmp_path, "improve", "--resume", "runs/x", "--json")
    assert "batch.taken_up" in errors
    assert set(asked(server).values()) == {1}
    assert json.loads(out)["rollouts"] > 0
    assert not (tmp_path / "runs/x/batches.db").exists()


def test_a_plan_knows_the_price_of_batches_and_that_training_waits_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "planted-key")

    def planned(*words: str) -> dict[str, Any]:
        assert main([*words]) == 0
        printed = capsys.readouterr()
        assert "planted-key" not in printed.out + printed.err
        return json.loads(printed.out)

    words = ["plan", "--plugin", "mathchat", "--json", "coach.use=openai", "coach.options.model=m"]
    words.append(f"coach.options.price={PRICE}")
    plain, batched = [planned(*words, f"coach.options.batch_api={value}") for value in ("null", "{price_share: 0.25}")]
    usd = [shown["run"]["coach_usd"]["value"] for shown in (plain, batched)]
    assert usd[1] == pytest.approx(0.25 * usd[0])
    waiting = [[note for note in run["notes"] if "waits for batches" in note] for run in (plain, batched)]
    assert waiting == [[], ["coach.options.batch_api: each of 60 iterations waits for batches"]]
