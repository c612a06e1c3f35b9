"""MLflow, with a store of its own in a file: one run, found again by its tag."""

from dataclasses import replace

import pytest

from mappa.testing import TrackerContract
from mappa_trackers.mlflow_tracker import MAX_PARAM_CHARACTERS, MlflowTracker
from mappa_trackers.options import MlflowOptions

mlflow = pytest.importorskip("mlflow", reason="`make test-trackers` runs these in an environment of their own")


@pytest.fixture(scope="module")
def uri(tmp_path_factory):
    """A store, made once: its tables take seconds."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow') / 'store.db'}"


class TestContract(TrackerContract):
    @pytest.fixture(autouse=True)
    def _store(self, uri):
        self.uri = uri

    def tracker(self):
        return MlflowTracker(MlflowOptions(uri=self.uri))


def told(uri, run, *rows, ending="done", experiment="teams"):
    tracker = MlflowTracker(MlflowOptions(uri=uri, experiment=experiment))
    tracker.start(run)
    for iteration, metrics in rows:
        tracker.log(iteration, metrics)
    tracker.close(ending)


def runs(uri, experiment):
    client = mlflow.MlflowClient(uri)
    return client, client.search_runs([client.get_experiment_by_name(experiment).experiment_id])


def test_figures_settings_and_ending_are_there(uri, run):
    told(uri, run, (0, {"eval/accuracy": 0.25}), (1, {"accuracy": 0.5, "stratum/a>b/accuracy": 1.0}), ending="stopped")
    client, (found,) = runs(uri, "teams")
    assert (found.info.run_name, found.info.status, found.data.tags["mappa.run"]) == ("first", "KILLED", run.id)
    assert found.data.params["train.iterations"] == "2" and found.data.params["coach.options"] == "{}"
    assert len(found.data.params["long"]) == MAX_PARAM_CHARACTERS and found.data.params["long"].endswith("…")
    assert found.data.metrics == {"eval/accuracy": 0.25, "accuracy": 0.5, "stratum/a_b/accuracy": 1.0}
    told(uri, replace(run, done=1), (2, {"accuracy": 1.0}))
    client, (found,) = runs(uri, "teams")
    assert found.info.status == "FINISHED"
    steps = [(point.step, point.value) for point in client.get_metric_history(found.info.run_id, "accuracy")]
    assert steps == [(1, 0.5), (2, 1.0)]


def test_more_figures_than_the_service_takes_at_once(uri, run):
    told(uri, run, (1, {f"agent/a{number}/score": float(number) for number in range(1001)}), experiment="many")
    _, (found,) = runs(uri, "many")
    assert len(found.data.metrics) == 1001 and found.data.metrics["agent/a1000/score"] == 1000.0
