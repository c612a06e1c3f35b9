"""The phases of a training, as its listener hears of them."""

from __future__ import annotations

import asyncio
import threading

import pytest

from mappa.training import Run
from mappa.training.listener import Listener


class Ears(Listener):
    """Notes phases with the iterations done, and what else is heard between them."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, int]] = []

    def on_phase_start(self, phase, done):
        self.heard.append((phase, done))

    def on_verdict(self, verdict):
        self.heard.append(("verdict", verdict.score))

    @property
    def phases(self):
        return [one for one in self.heard if one[0] != "verdict"]


@pytest.fixture
def start(registry, tmp_path):
    def make(*settings):
        words = (f"run.root={tmp_path}", "run.name=run", *settings)
        return Run.from_recipe("doubles/tiny", *words, registry=registry)

    return make


def without_saving(phases):
    """The order of the loop: whether it has to wait for a checkpoint depends on the disk."""
    return [phase for phase in phases if phase[0] != "save"]


def test_listener_hears_the_phases_in_order(start):
    ears = Ears()
    start("train.iterations=2", "eval.every=1").train(ears)
    learning = ("collect", "judge", "credit", "score", "credit", "update", "publish")
    assert without_saving(ears.phases) == [
        ("evaluate", 0),
        *((phase, 0) for phase in learning),
        ("evaluate", 1),
        *((phase, 1) for phase in learning),
        ("evaluate", 2),
    ]


def test_judging_begins_once_all_agents_have_ended_and_verdicts_are_outstanding(start, registry, monkeypatch):
    """The coach waits for the phase itself: named by a guess, it would never come."""
    strict = registry.plugins["doubles"].offers["coaches"]["strict"].build
    score, judging = strict.score, asyncio.Event()

    async def late(self, scene):
        if scene.step.agent == "checker":
            await asyncio.wait_for(judging.wait(), 20)
        return await score(self, scene)

    class Bell(Ears):
        def on_phase_start(self, phase, done):
            super().on_phase_start(phase, done)
            if phase == "judge":
                judging.set()

    monkeypatch.setattr(strict, "score", late)
    bell = Bell()
    start("train.iterations=1", "sampling.concurrency=4").train(bell)
    after = bell.heard[bell.heard.index(("judge", 0)) :]
    assert sum(one[0] == "verdict" for one in after) >= 4, "all four checkers were judged in the phase `judge`"


def test_counterfactual_rollouts_are_a_phase(start):
    ears = Ears()
    start("credit.counterfactual.use=sibling", "train.iterations=1").train(ears)
    assert [phase for phase, _ in ears.phases][1:5] == ["collect", "judge", "counterfactuals", "credit"]


def test_listener_hears_the_phase_save_while_the_loop_waits_for_a_checkpoint(start, fsync_path, sync_checkpoints_by):
    """The disk is slow until the loop says that it waits for it."""
    waited = threading.Event()

    def slow(path):
        assert waited.wait(20)
        fsync_path(path)

    class Bell(Ears):
        def on_phase_start(self, phase, done):
            super().on_phase_start(phase, done)
            if phase == "save":
                waited.set()

    sync_checkpoints_by(slow)
    bell = Bell()
    start("train.iterations=1", "checkpoint.every=1").train(bell)
    assert bell.phases[-2:] == [("evaluate", 1), ("save", 1)]
