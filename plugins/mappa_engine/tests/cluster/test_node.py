"""This machine as a node: what its driver lists, and what would keep an engine from starting on it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mappa.testing import load_plugins
from mappa_core import ConfigError
from mappa_core.engine import Lora, Machine, PolicySpec, TrainSection
from mappa_engine import doctor_checks, node
from mappa_engine.cluster import plan
from mappa_engine.model_shape import read_shape
from mappa_engine.node import MIB, Gpu, Node, parse_gpus, this_node, visible_gpus
from mappa_engine.options import ClusterOptions

TINY = "package:mappa_engine/models/tiny"
GB = 10**9
A10 = Gpu(name="NVIDIA A10", size=23_028 * MIB, driver="580.65.06", capability=8.6)
BARE = Node(
    gpus=(), memory=64 * GB, shared_memory=32 * GB, nvcc=None, compiler="gcc", python_headers=True, cuda=None
)  # fmt: skip
WITH_GPU = replace(BARE, gpus=(A10,), cuda="13.0.96")


@pytest.fixture
def on(monkeypatch):
    """Set the machine that is seen, with all libraries installed."""

    def see(machine: Node) -> None:
        monkeypatch.setattr(plan, "this_node", lambda: machine)
        monkeypatch.setattr(doctor_checks, "this_node", lambda: machine)
        monkeypatch.setattr(plan, "library_problems", dict)

    return see


def planned(*, kind: str = "full", machines=(), **options):
    lora = Lora(rank=8, alpha=16.0) if kind == "lora" else None
    policies = [PolicySpec(name=name, model=TINY, kind=kind, lora=lora) for name in ("a", "b")]
    shapes = {TINY: read_shape(TINY)}
    return plan.plan_cluster(
        policies, shapes, ClusterOptions(**options), machines, train=TrainSection(micro_tokens=4096)
    )


def test_gpus_of_several_kinds_are_parsed():
    listed = ("NVIDIA A10, 23028, 580.65.06, 8.6", "NVIDIA H100, 81559, 580.65.06, 9.0", "Old, card, 512, 470.1, [N/A]")
    first, second, third = parse_gpus("\n".join(listed))
    assert first == A10 and second.size == 81_559 * MIB
    assert third == Gpu(name="Old, card", size=512 * MIB, driver="470.1", capability=None)
    assert parse_gpus("") == ()


@pytest.mark.parametrize(
    ("named", "seen"),
    [
        (None, "ABC"),
        ("", ""),
        ("-1", ""),
        ("2", "C"),
        ("1, 0", "BA"),
        ("0,7,1", "A"),  # CUDA takes none after one that it does not know
        ("GPU-8932f937,GPU-1b1a", "AB"),
    ],
)
def test_gpus_hidden_from_cuda_are_ignored(named, seen):
    gpus = tuple(replace(A10, name=name) for name in "ABC")
    assert "".join(gpu.name for gpu in visible_gpus(gpus, named)) == seen


def test_this_node_is_read():
    seen = this_node()
    assert seen.memory > GB and seen.machine.memory_bytes == seen.memory and seen.machine.cpus >= 1


def test_memory_of_a_container_is_its_limit(tmp_path, monkeypatch):
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(node, "_CGROUP_LIMITS", (str(limit),))
    limit.write_text("max\n")
    unlimited = node._memory_bytes()
    limit.write_text("1073741824\n")
    assert node._memory_bytes() == 1 << 30 < unlimited


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"gpus": (replace(A10, driver="570.86.15"),)},
         "driver 570.86.15 is older than the 580 that CUDA 13.0.96 of the installed torch needs"),
        ({"compiler": None, "python_headers": False}, "a C compiler and Python's headers are missing"),
        ({"gpus": (replace(A10, name="T4", capability=7.5),)}, "T4 has no bfloat16 (compute capability 7.5)"),
    ],
)  # fmt: skip
def test_plan_and_doctor_name_what_a_gpu_node_lacks(on, change, said):
    machine = replace(WITH_GPU, **change)
    on(machine)
    assert [said in problem for problem in planned().details["problems"]] == [True]
    results = doctor_checks.check_node(load_plugins(only=("engine",)))
    assert any(not result.ok and said in result.detail for result in results.values())


def test_complete_node_has_no_problems(on):
    on(WITH_GPU)
    found = planned()
    assert found.details["problems"] == () and found.notes == ()
    assert found.details["placement"]["device"] == "gpu"
    results = doctor_checks.check_node(load_plugins(only=("engine",)))
    assert {name for name, result in results.items() if not result.ok} == {"nvcc"}
    assert planned(dtype="float32").details["problems"] == ()


def test_all_problems_are_named_at_once(on, monkeypatch):
    on(replace(WITH_GPU, gpus=(replace(A10, driver="535.1"),), compiler=None, memory=2 * GB))
    monkeypatch.setattr(plan, "library_problems", lambda: {"ray": "not installed"})
    with pytest.raises(ConfigError) as refused:
        planned()
    text = str(refused.value)
    assert "this machine itself has 2.0 GB of memory" in text and "ray: not installed" in text
    assert "driver 535.1" in text and "a C compiler" in text


def test_shared_memory_that_is_too_small_is_noted(on):
    on(replace(WITH_GPU, gpus=(A10, A10), shared_memory=64 * 1000 * 1000))
    experimental, note = planned().notes
    assert experimental.startswith("experimental: ")
    assert note == "/dev/shm has 64.0 MB, and 1.0 GB are needed: in a container start it with --shm-size=8g"
    on(replace(WITH_GPU, shared_memory=64 * 1000 * 1000))
    assert planned().notes == ()  # one rank hands nothing on


def test_machine_without_gpus_names_the_smallest_gpu_that_fits(on):
    on(BARE)
    assert planned().notes == ("no GPU is seen here; it fits 1 GPU of 24 GB",)


def test_checkpoint_size_by_hand(on):
    on(WITH_GPU)
    parameters = read_shape(TINY).parameters
    assert planned().details["checkpoint_bytes"] == {"float32": 24 * parameters, "bfloat16": 20 * parameters}
    adapter = read_shape(TINY).adapter(Lora(rank=8, alpha=16.0))
    assert planned(kind="lora").details["checkpoint_bytes"] == {"float32": 24 * adapter, "bfloat16": 24 * adapter}


def test_given_machines_are_planned_for(on):
    on(BARE)
    found = planned(machines=[Machine(host="n", cpus=8, gpus=1, gpu_bytes=24 * GB)])
    assert "problems" not in found.details and found.notes == ()
    assert found.details["placement"]["device"] == "gpu"


@pytest.mark.parametrize(
    ("limit", "free"), [("max", 3_000_000_000), ("4000000000", 1_500_000_000), ("9000000000", 3_000_000_000)]
)
def test_what_is_free_is_that_of_the_machine_and_of_the_container(monkeypatch, tmp_path, limit, free):
    """A container of 4 GB that has taken 3, of which 0.5 are files that nobody uses: 4 - 3 + 0.5."""
    contents = {
        "meminfo": "MemTotal: 8000000 kB\nMemAvailable: 2929688 kB\n",
        "memory.max": f"{limit}\n",
        "memory.current": "3000000000\n",
        "memory.stat": "anon 2500000000\ninactive_file 500000000\n",
    }
    for name, text in contents.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(node, "_MEMORY_INFO", tmp_path / "meminfo")
    monkeypatch.setattr(node, "_CGROUP_MEMORY", tuple(tmp_path / name for name in list(contents)[1:]))
    assert node.free_memory() == pytest.approx(free, abs=1024)
    assert node.swap_space() == 0
    monkeypatch.setattr(node, "_MEMORY_INFO", tmp_path / "nowhere")
    monkeypatch.setattr(node, "_CGROUP_MEMORY", (tmp_path / "nowhere",))
    assert node.free_memory() is None
