"""Core's own offers keep the contracts that it asks of others."""

from __future__ import annotations

import json

import pytest

from mappa.testing import ShaperContract, TaskSourceContract, TrackerContract, load_plugins
from mappa_core import Tracker
from mappa_core.defaults.task_sources import FileOptions, FileTasks

REGISTRY = load_plugins(only=())


def build_shaper(name, **options):
    return REGISTRY.build("shapers", name, REGISTRY.offer("shapers", name).options(**options))


class TestScale(ShaperContract):
    def shaper(self):
        return build_shaper("scale")


class TestOutcome(ShaperContract):
    fills_missing = True

    def shaper(self):
        return build_shaper("outcome")


class TestOutcomeMix(ShaperContract):
    def shaper(self):
        return build_shaper("outcome_mix")


class TestDifference(ShaperContract):
    def shaper(self):
        return build_shaper("difference")


class TestReturnToGo(ShaperContract):
    def shaper(self):
        return build_shaper("return_to_go", gamma=0.9)


class TestLengthPenalty(ShaperContract):
    def shaper(self):
        return build_shaper("length_penalty", limit=8, buffer=4)


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
