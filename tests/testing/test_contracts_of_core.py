"""Core's own offers keep the contracts that it asks of others."""

from __future__ import annotations

import json

import pytest

from mappa.testing import ShaperContract, TaskSourceContract, TrackerContract
from mappa_core import Tracker
from mappa_core.credit import shapers
from mappa_core.defaults.task_sources import FileOptions, FileTasks


class TestScale(ShaperContract):
    def shaper(self):
        return shapers.ScaleShaper(shapers.ScaleOptions())


class TestOutcome(ShaperContract):
    fills_missing = True

    def shaper(self):
        return shapers.OutcomeShaper(shapers.OutcomeOptions())


class TestOutcomeMix(ShaperContract):
    def shaper(self):
        return shapers.OutcomeMixShaper(shapers.OutcomeMixOptions())


class TestDifference(ShaperContract):
    def shaper(self):
        return shapers.DifferenceShaper(shapers.DifferenceOptions())


class TestReturnToGo(ShaperContract):
    def shaper(self):
        return shapers.ReturnToGoShaper(shapers.ReturnToGoOptions(gamma=0.9))


class TestLengthPenalty(ShaperContract):
    def shaper(self):
        return shapers.LengthPenaltyShaper(shapers.LengthPenaltyOptions(limit=8, buffer=4))


class TestFileTasks(TaskSourceContract):
    @pytest.fixture(autouse=True)
    def _files(self, tmp_path):
        for split, numbers in (("train", range(4)), ("eval", range(4, 6))):
            rows = [json.dumps({"id": n, "prompt": f"{n}?", "answer": n, "note": None}) for n in numbers]
            (tmp_path / f"{split}.jsonl").write_text("\n".join(rows))
        self.folder = tmp_path

    def source(self):
        paths = {"path": str(self.folder / "train.jsonl"), "eval_path": str(self.folder / "eval.jsonl")}
        return FileTasks(FileOptions(**paths))


class Silent(Tracker):
    """Tells nobody anything."""

    def log(self, iteration, metrics): ...


class TestSilent(TrackerContract):
    def tracker(self):
        return Silent()
