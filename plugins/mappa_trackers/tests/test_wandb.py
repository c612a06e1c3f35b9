"""Weights & Biases, offline: what lies in the run's folder is what was told."""

import json
import struct
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("wandb", reason="`make test-trackers` runs these in an environment of their own")
from wandb.proto import wandb_internal_pb2 as wire

from mappa.testing import TrackerContract
from mappa_core import ConfigError
from mappa_trackers.options import WandbOptions
from mappa_trackers.weights_and_biases import WandbTracker


class TestContract(TrackerContract):
    def tracker(self):
        return WandbTracker(WandbOptions(mode="offline"))


PATIENCE_S = 30.0
BLOCK, HEADER = 32768, 7
"""The file is a log of LevelDB: blocks of fragments, each with checksum, length and kind (whole, first, middle,
last)."""


def fragments(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Those that are whole: the file may still be written."""
    at = HEADER
    while at + HEADER <= len(data):
        left = BLOCK - at % BLOCK
        if left < HEADER:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        if at + HEADER + length > len(data):
            return
        yield kind, data[at + HEADER : at + HEADER + length]
        at += HEADER + length


def records(folder: Path) -> list[wire.Record]:
    """Everything in the offline runs of a folder, the oldest first."""
    found = []
    for path in sorted(folder.glob("wandb/offline-run-*/run-*.wandb")):
        whole = b""
        for kind, part in fragments(path.read_bytes()):
            whole = part if kind in (1, 2) else whole + part
            if kind in (1, 4):
                found.append(wire.Record.FromString(whole))
    return found


def history(folder):
    """The rows that were logged."""
    for record in records(folder):
        if record.WhichOneof("record_type") == "history":
            items = {item.key or ".".join(item.nested_key): item.value_json for item in record.history.item}
            yield {key: json.loads(value) for key, value in items.items() if not key.startswith("_")}


def told(run, *rows, ending="done"):
    tracker = WandbTracker(WandbOptions(mode="offline", project="teams", tags=["tried"]))
    tracker.start(run)
    for iteration, metrics in rows:
        tracker.log(iteration, metrics)
    tracker.close(ending)
    wait_until_written(run.folder)


def exits(folder: Path) -> list[int]:
    """The exit codes of the runs of a folder."""
    return [record.exit.exit_code for record in records(folder) if record.WhichOneof("record_type") == "exit"]


def wait_until_written(folder: Path) -> None:
    """The library's own process writes the file, and says that a run is finished before it has written its end."""
    until = time.monotonic() + PATIENCE_S
    while len(exits(folder)) < len(list(folder.glob("wandb/offline-run-*"))) and time.monotonic() < until:
        time.sleep(0.05)


def test_a_run_lies_in_its_folder_under_its_own_id(run):
    told(run, (0, {"eval/accuracy": 0.25}), (1, {"accuracy": 0.5}), (2, {"accuracy": 1.0}))
    # The library may write what it knows of a run more than once.
    about = next(record.run for record in records(run.folder) if record.WhichOneof("record_type") == "run")
    assert (about.run_id, about.display_name, about.project) == (run.id, "first", "teams")
    assert set(about.tags) == {"tried", "mathchat"}
    settings = {item.key: json.loads(item.value_json) for item in about.config.update}
    assert settings["train"] == {"iterations": 2}
    assert list(history(run.folder)) == [
        {"iteration": 0, "eval/accuracy": 0.25},
        {"iteration": 1, "accuracy": 0.5},
        {"iteration": 2, "accuracy": 1.0},
    ]
    assert exits(run.folder) == [0]


def test_a_run_that_goes_on_is_the_same_run(run):
    told(run, (1, {"accuracy": 0.5}), ending="stopped")
    time.sleep(1.1)  # the library names the folder of an offline run by the second
    told(replace(run, done=1), (2, {"accuracy": 1.0}))
    abouts = [record.run for record in records(run.folder) if record.WhichOneof("record_type") == "run"]
    assert {about.run_id for about in abouts} == {run.id}
    assert len(list(run.folder.glob("wandb/offline-run-*"))) == 2
    assert sorted(exits(run.folder)) == [0, 1]


def test_an_unknown_mode_is_refused():
    with pytest.raises(ConfigError, match="'off'; it can be online or offline"):
        WandbTracker(WandbOptions(mode="off"))
