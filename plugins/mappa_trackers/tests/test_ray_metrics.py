"""Ray offers the figures of a run at the port where Prometheus asks for its metrics."""

import time
import urllib.request
from dataclasses import replace

import pytest

pytest.importorskip("ray", reason="`make test-trackers` runs these in an environment of their own")
import ray

from mappa.testing import TrackerContract
from mappa_core import ConfigError
from mappa_trackers.options import RayOptions
from mappa_trackers.ray_metrics import RayTracker, metrics_address

PATIENCE_S = 60.0
"""Ray passes metrics on every few seconds."""


@pytest.fixture(scope="module")
def connected():
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, object_store_memory=100 << 20)
    yield
    ray.shutdown()


@pytest.mark.usefixtures("connected")
class TestContract(TrackerContract):
    def tracker(self):
        return RayTracker(RayOptions())


def offered(*wanted: str) -> list[str]:
    """The lines of Mappa at the port, once all of `wanted` are part of one each; else those of the last look."""
    until = time.monotonic() + PATIENCE_S
    while True:
        with urllib.request.urlopen(metrics_address(ray), timeout=10) as answer:
            lines = [line for line in answer.read().decode().splitlines() if line.startswith("ray_mappa_")]
        if all(any(figure in line for line in lines) for figure in wanted) or time.monotonic() > until:
            return lines
        time.sleep(0.5)


def labelled(lines, gauge, *labels):
    """The value of the one line of a gauge that has these labels."""
    (line,) = (line for line in lines if line.startswith(gauge) and all(label in line for label in labels))
    return float(line.rpartition(" ")[2])


def test_prometheus_is_offered_the_last_figures_of_every_run(run, connected):
    for name, share in (("first", 0.25), ("second", 0.75)):
        tracker = RayTracker(RayOptions())
        tracker.start(replace(run, name=name))
        tracker.log(1, {"accuracy": 0.0})
        tracker.log(2, {"accuracy": share, "agent/data/engineer/score": 7.5})
        tracker.close("done")
    lines = offered('run="first"', 'run="second"')
    assert labelled(lines, "ray_mappa_figure{", 'run="first"', 'name="accuracy"') == 0.25
    assert labelled(lines, "ray_mappa_figure{", 'run="second"', 'name="accuracy"') == 0.75
    assert labelled(lines, "ray_mappa_figure{", 'run="first"', 'name="agent/data/engineer/score"') == 7.5
    assert labelled(lines, "ray_mappa_iteration{", 'run="second"') == 2


def test_without_a_ray_of_the_run_it_says_what_would_have_one(run):
    ray.shutdown()
    with pytest.raises(ConfigError, match=r"engine\.use=cluster"):
        RayTracker(RayOptions()).start(run)
