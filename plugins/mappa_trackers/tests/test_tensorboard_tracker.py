"""TensorBoard shows what was logged, and forgets what a run that goes on does again."""

from dataclasses import replace

import pytest

pytest.importorskip("tensorboard")
pytest.importorskip("torch")
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from mappa.testing import TrackerContract
from mappa_trackers.options import TensorBoardOptions
from mappa_trackers.tensorboard_tracker import TensorBoardTracker


class TestContract(TrackerContract):
    def tracker(self):
        return TensorBoardTracker(TensorBoardOptions())


def scalars(folder):
    read = EventAccumulator(str(folder), purge_orphaned_data=True)
    read.Reload()
    return {tag: [(point.step, point.value) for point in read.Scalars(tag)] for tag in read.Tags()["scalars"]}


def told(run, *rows, options=None):
    tracker = TensorBoardTracker(options or TensorBoardOptions())
    tracker.start(run)
    for iteration, metrics in rows:
        tracker.log(iteration, metrics)
    tracker.close("done")


def test_every_figure_is_a_scalar_and_a_run_that_goes_on_replaces_what_it_does_again(run):
    name = "stratum/easy/accuracy"
    told(run, (0, {"eval/accuracy": 0.25}), (1, {name: 0.5}), (1, {"eval/accuracy": 0.5}), (2, {name: 1.0}))
    folder = run.folder / "tensorboard"
    assert scalars(folder) == {"eval/accuracy": [(0, 0.25), (1, 0.5)], name: [(1, 0.5), (2, 1.0)]}
    told(replace(run, done=1), (2, {name: 0.75}), (3, {name: 0.875}))
    assert scalars(folder) == {"eval/accuracy": [(0, 0.25), (1, 0.5)], name: [(1, 0.5), (2, 0.75), (3, 0.875)]}


def test_runs_share_a_folder_of_one_s_own_under_their_names(run, tmp_path):
    told(run, (1, {"accuracy": 1.0}), options=TensorBoardOptions(folder=str(tmp_path / "boards")))
    assert scalars(tmp_path / "boards" / "first") == {"accuracy": [(1, 1.0)]}
