"""Runs whose coach is called by a transport that breaks, hangs, is killed or runs out of memory."""

import asyncio
import json
from collections import Counter
from dataclasses import replace

import pytest

from mappa.commands import Console
from mappa.runs import RunReader
from mappa.testing import load_plugins
from mappa.training import Run
from mappa_core import GuardStop, Offer, Usage, hookimpl
from mappa_core.transport import Reply

FAULTS = {
    "raises": lambda: RuntimeError("Cannot send a request, as the client has been closed."),
    "is killed": lambda: ConnectionResetError("Connection reset by peer"),
    "fills its memory": MemoryError,
    "hangs": lambda: RuntimeError("it hung before"),
}


class FlakyTransport:
    """Judges by what is asked, and meets the faults that it is told to. One that met any has a broken client."""

    model, host = "flaky-1", "example.org"

    def __init__(self, fates):
        self._fates = fates
        self._broken = None
        self.is_closed = asyncio.Event()

    async def complete(self, request):
        self._fates.calls += 1
        what = self._fates.faults.pop(self._fates.calls, None)
        if what is not None:
            self._fates.met[what] += 1
            self._broken = FAULTS[what]
        if what == "hangs":
            await self._hang()
        if self._broken is not None:
            raise self._broken()
        points = int(request.address[:8], 16) % 11
        text = json.dumps({"reasoning": "seen", "blame": "nobody", "score": points})
        usage = Usage(calls=1, prompt_tokens=100, completion_tokens=10)
        return Reply(text=text, stop="end", model=self.model, raw=text, usage=usage)

    async def _hang(self):
        while not self.is_closed.is_set():
            try:
                await self.is_closed.wait()
            except asyncio.CancelledError:
                continue

    async def count(self, messages):
        return None

    async def close(self):
        self.is_closed.set()
        if self._fates.sticks:
            raise RuntimeError("Event loop is closed")


class Fates:
    """`faults` of the calls of a run, by the number of the call from 1; `met` counts those that came."""

    def __init__(self):
        self.faults, self.met, self.calls, self.sticks = {}, Counter(), 0, False

    @hookimpl
    def mappa_transports(self):
        yield Offer("flaky", lambda options: FlakyTransport(self))


@pytest.fixture
def fates():
    return Fates()


@pytest.fixture
def start(registry, fates, tmp_path, hang_after):
    """A run of the doubles on the paced engine, coached by `flaky`."""
    hang_after(0.01)
    flaky = load_plugins(only=("engine", "sandbox"), modules={"flaky": fates}).plugins
    both = replace(registry, plugins={**registry.plugins, **flaky})

    def make(*settings, name="run"):
        fates.calls = 0
        words = (
            f"run.root={tmp_path / 'runs'}",
            f"run.name={name}",
            "engine.use=paced",
            "engine.options={deterministic: true}",
            "eval.problems=2",
            "eval.coach=true",
            "coach.use=flaky",
            "coach.cassette.mode=off",
            "coach.options.limits={timeout_s: 0.1, max_wait_s: 0, attempts: 8}",
        )
        return Run.from_recipe("doubles/tiny", *words, *settings, registry=both)

    return make


def verdicts(folder):
    """Status and score of all verdicts, by their ids; and the losses of transports."""
    with RunReader(folder) as reader:
        plays = [reader.trajectory(row.id) for row in reader.trajectories]
        given = {verdict.id: (verdict.status, verdict.score) for play in plays for verdict in play.verdicts}
        return given, [event.body for event in reader.events("transport_lost")]


@pytest.mark.parametrize("what", FAULTS)
def test_whatever_a_transport_dies_of_and_when_the_run_learns_the_same(start, fates, plugin, registry, what):
    engines = registry.plugins["doubles"].offers["engines"]["paced"].build
    undisturbed = start("train.iterations=6", name="undisturbed").train()
    learned, calls = engines.made[-1].learned, fates.calls
    # From the first call on, so far apart that there are replies between them.
    fates.faults = {1 + number * (calls - 1) // 9: what for number in range(10)}
    trained = start("train.iterations=6").train()
    assert trained.summary.status == "done" and fates.faults == {}
    assert fates.met == {what: 10}
    given, losses = verdicts(trained.folder)
    assert given == verdicts(undisturbed.folder)[0]
    assert len(given) == calls and {status for status, _ in given.values()} == {"scored"}
    assert engines.made[-1].learned == learned
    assert len(losses) == trained.summary.transport_losses == 10
    assert undisturbed.summary.transport_losses == 0


def test_a_transport_that_always_breaks_is_replaced_three_times_and_then_the_guard_stops_the_run(
    start, fates, show_result, report_of, registry
):
    fates.faults = dict.fromkeys(range(13, 500), "raises")
    run = start("train.iterations=6", "coach.options.limits.breaker_failures=500")
    with pytest.raises(
        GuardStop, match=r"have no score, more than coach.max_missing=10%(.|\n)*the client of flaky broke"
    ):
        run.train()
    given, losses = verdicts(run.folder)
    assert {status for status, _ in given.values()} == {"scored", "failed"}
    said = "RuntimeError: Cannot send a request, as the client has been closed."
    assert [(loss["provider"], loss["error"].partition(" (")[0]) for loss in losses] == [("flaky", said)] * 3
    fates.faults = {}
    resumed = Run.resume(run.folder, registry=run._registry).train()
    assert (resumed.summary.status, resumed.summary.transport_losses) == ("done", 3)
    console = Console(width=200, record=True, quiet=False)
    show_result(console, resumed)
    assert "the client of a provider was replaced 3 times" in console.export_text()
    assert "The client of a provider was replaced 3 times." in report_of(resumed)


def test_a_transport_that_cannot_be_closed_does_not_end_a_run_that_is_done(start, fates):
    fates.sticks = True
    trained = start("train.iterations=1").train()
    assert (trained.summary.status, trained.summary.transport_losses) == ("done", 0)
