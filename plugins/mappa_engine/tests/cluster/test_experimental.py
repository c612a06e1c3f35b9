"""Placements on GPUs that nobody has run are named; those that ran, and all on CPUs, are not."""

from __future__ import annotations

import pytest

from mappa_core.engine import Machine, PolicySpec, TrainSection
from mappa_engine.cluster.experimental import experimental_parts, experimental_warning
from mappa_engine.cluster.placement import Placement, Resources, find_placement, read_shape
from mappa_engine.options import ClusterOptions

TRAIN = TrainSection()
TINY = "package:mappa_engine/models/tiny"


def placed(*, gpus: int = 1, nodes: int = 1, train: TrainSection | None = TRAIN, **options) -> Placement:
    machines = tuple(Machine(host=f"n{n}", cpus=4, gpus=gpus, gpu_bytes=80 * 10**9 * bool(gpus)) for n in range(nodes))
    policies, shapes = [PolicySpec(name="a", model=TINY)], {TINY: read_shape(TINY)}
    return find_placement(policies, shapes, Resources(nodes=machines), ClusterOptions(**options), train=train)


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({}, []),
        ({"gpus": 2}, ["several GPUs"]),
        ({"gpus": 1, "nodes": 2}, ["GPUs of several machines"]),
        ({"gpus": 2, "placement": "separate"}, ["several GPUs", "placement=separate"]),
        ({"gpus": 2, "tensor_parallel": 2}, ["several GPUs", "tensor_parallel=2"]),
        ({"zero": 3}, ["zero=3"]),
        ({"gpus": 2, "zero": 1, "placement": "separate", "transport": "nccl"},
         ["several GPUs", "placement=separate", "transport=nccl", "zero=1"]),
        ({"offload_optimizer": True}, ["offload_optimizer=true"]),
        ({"dtype": "float32"}, ["dtype=float32"]),
        ({"dtype": "float32", "train": None}, []),
        ({"gpus": 0, "zero": 3, "offload_optimizer": True}, []),
    ],
)  # fmt: skip
def test_parts_that_nobody_ran_are_named(options, parts):
    assert list(experimental_parts(placed(**options))) == parts


def test_warning_is_one_line_with_the_options():
    assert experimental_warning(placed(zero=3)) == (
        "experimental: we have not run this on GPUs (zero=3). Compare a short run with one GPU first."
    )


def test_what_was_run_has_no_warning():
    assert experimental_warning(placed()) is None
