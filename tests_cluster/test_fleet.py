"""The fleet: what its processes see, and what the driver is told when they fail, die or hang."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from structlog.contextvars import bound_contextvars, get_contextvars

from mappa_core.errors import ConfigError
from mappa_engine.cluster.actors import Actor, RayActors
from mappa_engine.cluster.errors import ActorLost, ActorTimeout
from mappa_engine.cluster.learners.process_group import free_address, open_store
from mappa_engine.cluster.samplers.server import SamplerServer
from mappa_engine.errors import ModelError

CANARY = "canary-5d1f"
KEYS = ("OPENAI_API_KEY", "GOOGLE_API_KEY", "HF_TOKEN", "VLLM_API_KEY", "ACME_PASSWORD", "MY_OWN_VARIABLE")


class Clerk:
    """An actor of tests."""

    def __init__(self, start: int = 0, *, model: str = "") -> None:
        if model:
            raise ModelError(f"{model}: it has no tokenizer")
        self.total = start

    def add(self, number: int) -> int:
        self.total += number
        return self.total

    def sleep(self, seconds: float) -> float:
        time.sleep(seconds)
        return seconds

    def fail(self) -> None:
        raise KeyError("a bug of its own")

    def fail_unpicklably(self) -> None:
        raise OSError(threading.Lock())

    def speak_and_die(self) -> None:
        print("the disk is full", file=sys.stderr, flush=True)
        os._exit(7)

    def environment(self) -> dict[str, str]:
        return dict(os.environ)

    def niceness(self) -> int:
        return os.nice(0)

    def context(self) -> dict[str, Any]:
        return get_contextvars()


@pytest.fixture
async def hire(ray_actors: RayActors) -> AsyncIterator[Callable[..., Any]]:
    """Start a clerk that the test's end ends."""
    hired: list[Actor] = []

    async def start(*args: Any, **kwargs: Any) -> Actor:
        options = {"name": f"clerk{len(hired)}", "role": "clerk", "deadline_s": 120.0}
        hired.append(await ray_actors.start(Clerk, *args, **{**options, **kwargs}))
        return hired[-1]

    yield start
    for actor in hired:
        if actor in ray_actors.members:
            await ray_actors.end(actor)


async def test_actor_log_lines_have_the_fields_of_the_call(ray_actors, hire):
    clerk = await hire()
    with bound_contextvars(run="first", iteration=3):
        during = clerk.call("context")
    after = clerk.call("context")
    fields = [await ray_actors.wait_for(call, deadline_s=60, what="say") for call in (during, after)]
    assert fields == [{"run": "first", "iteration": 3, "actor": clerk.name}, {"actor": clerk.name}]


async def test_actors_are_processes_with_ordered_calls(ray_actors, hire):
    one, other = await asyncio.gather(hire(10, libraries=("ray", "vllm")), hire(20))
    assert len({os.getpid(), one.process.pid, other.process.pid}) == 3
    assert one.process.versions.keys() == {"ray", "vllm"}
    assert await ray_actors.wait_for(one.call("add", ray_actors.put(5)), deadline_s=60, what="add") == 15
    calls = [actor.call("add", number) for number in (1, 2) for actor in (one, other)]
    assert await ray_actors.wait_for(calls, deadline_s=60, what="add") == [16, 21, 18, 23]


async def test_actor_errors_have_their_traceback(ray_actors, hire):
    actor = await hire()
    with pytest.raises(KeyError, match="a bug of its own") as raised:
        await ray_actors.wait_for(actor.call("fail"), deadline_s=60, what="fail")
    assert "in fail\n    raise KeyError" in "".join(raised.value.__notes__)
    with pytest.raises(RuntimeError, match="OSError") as raised:
        await ray_actors.wait_for(actor.call("fail_unpicklably"), deadline_s=60, what="fail")
    assert "in fail_unpicklably" in "".join(raised.value.__notes__)
    assert await ray_actors.wait_for(actor.call("add", 1), deadline_s=60, what="add") == 1


async def test_one_failure_ends_a_wait_for_several_calls(ray_actors, hire):
    slow, broken = await hire(), await hire()
    with pytest.raises(KeyError):
        await ray_actors.wait_for([slow.call("sleep", 600), broken.call("fail")], deadline_s=600, what="work")


async def test_failed_actor_leaves_no_process(ray_actors, hire):
    before = set(ray_actors.members)
    with pytest.raises(ModelError, match="it has no tokenizer"):
        await hire(model="acme")
    assert set(ray_actors.members) == before


async def test_killed_actor_fails_all_waiting_calls(ray_actors, hire):
    actor = await hire()
    waiting = [
        asyncio.ensure_future(ray_actors.wait_for(actor.call("sleep", 600), deadline_s=600, what="rest")) for _ in "ab"
    ]
    await asyncio.sleep(0.2)
    os.kill(actor.process.pid, signal.SIGKILL)
    for wait in waiting:
        with pytest.raises(ActorLost, match=f"the actor clerk0 .process {actor.process.pid} on .* died") as lost:
            await wait
        assert lost.value.actor == "clerk0"
    with pytest.raises(ActorLost):
        await ray_actors.wait_for(actor.call("add", 1), deadline_s=60, what="add")


async def test_error_has_the_last_log_lines_of_an_actor(ray_actors, hire):
    actor = await hire()
    with pytest.raises(ActorLost, match="Its last words:\nthe disk is full"):
        await ray_actors.wait_for(actor.call("speak_and_die"), deadline_s=60, what="speak")


async def test_late_actor_can_be_called_again(ray_actors, hire):
    quick, slow = await hire(), await hire()
    calls = [quick.call("sleep", 0), slow.call("sleep", 3)]
    with pytest.raises(ActorTimeout, match=r"the actor clerk1 .* did not rest within 0.5 s") as late:
        await ray_actors.wait_for(calls, deadline_s=0.5, what="rest")
    assert late.value.actor == "clerk1"
    assert await ray_actors.wait_for(slow.call("add", 1), deadline_s=60, what="add") == 1


async def test_hung_actor_is_distinguished_from_a_busy_one(ray_actors, hire, monkeypatch):
    monkeypatch.setattr("mappa_engine.cluster.actors.ray_actors.HEARTBEAT_S", 1.0)
    monkeypatch.setattr(ray_actors, "_max_silence_s", 6.0)
    busy, hung = await hire(), await hire()
    work = busy.call("sleep", 12)
    os.kill(hung.process.pid, signal.SIGSTOP)
    with pytest.raises(ActorTimeout, match=r"clerk1 .* gave no sign of life"):
        await ray_actors.wait_for(hung.call("add", 1), deadline_s=120, what="add")
    assert await ray_actors.wait_for(work, deadline_s=60, what="work") == 12
    await ray_actors.end(hung)
    assert not psutil.pid_exists(hung.process.pid)


async def test_reservation_that_does_not_fit_names_the_numbers(ray_actors, hire):
    slots = await ray_actors.reserve([{"CPU": 1}, {"CPU": 1}], deadline_s=60)
    assert [slot.index for slot in slots] == [0, 1]
    held = await hire(slot=slots[1], cpus=1)
    with pytest.raises(ConfigError, match=r"65 CPU of 64.*Wanted, each on one machine: 65 x \(1 CPU\)"):
        await ray_actors.reserve([{"CPU": 1}] * 65, deadline_s=60)
    with pytest.raises(ConfigError, match=r"within 1 s. Wanted, each on one machine: 64 x \(1 CPU\). Free: \d+ CPU"):
        await ray_actors.reserve([{"CPU": 1}] * 64, deadline_s=1)
    await ray_actors.end(held)
    await ray_actors.free(slots)


async def test_gpu_numbers_of_bundles_that_are_partly_taken(ray_actors, hire):
    slots = await ray_actors.reserve([{"GPU": 1, "CPU": 1}] * 3, deadline_s=60)
    held = await hire(slot=slots[1], gpus=0.5)
    numbers = await ray_actors.gpu_numbers(slots[1:], share=0.5, deadline_s=120)
    assert len(set(numbers)) == 2 and set(numbers) <= {"0", "1", "2", "3"}
    assert numbers == await ray_actors.gpu_numbers(slots[1:], share=0.5, deadline_s=120)
    seen = await ray_actors.wait_for(held.call("environment"), deadline_s=60, what="look")
    assert seen["CUDA_VISIBLE_DEVICES"] == numbers[0]
    await ray_actors.end(held)
    await ray_actors.free(slots)


class Wide(Clerk):
    """An actor that shows itself all GPUs of its engine, as samplers do."""

    def __init__(self, numbers: tuple[str, ...]) -> None:
        super().__init__()
        with suppress(Exception):  # there is no such device; it has to say so after it looked
            SamplerServer(None, paused=True, gpu_numbers=numbers)


async def test_tensor_parallel_engine_sees_all_its_gpus(ray_actors):
    slots = await ray_actors.reserve([{"GPU": 1, "CPU": 1}] * 2, deadline_s=60)
    numbers = await ray_actors.gpu_numbers(slots, share=0.5, deadline_s=120)
    wide = await ray_actors.start(Wide, numbers, name="wide", role="clerk", deadline_s=120, slot=slots[0], gpus=0.5)
    seen = await ray_actors.wait_for(wide.call("environment"), deadline_s=60, what="look")
    assert seen["CUDA_VISIBLE_DEVICES"] == ",".join(numbers)
    await ray_actors.end(wide)
    await ray_actors.free(slots)


class Named(Clerk):
    """An actor on a machine whose name means an address that others cannot reach."""

    def meet(self) -> tuple[str, str, str]:
        socket.gethostbyname = lambda name: "127.0.1.1"
        rendezvous, store = open_store(2, 60)
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind((rendezvous.host, rendezvous.port))
        assert store.port == rendezvous.port
        return rendezvous.host, free_address().host, ray.util.get_node_ip_address()


async def test_ranks_meet_at_rays_address_on_a_port_that_nobody_else_can_take(ray_actors):
    named = await ray_actors.start(Named, name="named", role="clerk", deadline_s=120)
    store, free, known = await ray_actors.wait_for(named.call("meet"), deadline_s=60, what="meet")
    assert store == free == known != "127.0.1.1"
    await ray_actors.end(named)


async def test_an_actor_has_the_priority_of_its_driver(ray_actors, hire):
    """Ray would give it the least but four: whatever else the machine does kept it from giving a sign of life."""
    actor = await hire()
    assert await ray_actors.wait_for(actor.call("niceness"), deadline_s=60, what="look") == os.nice(0)


async def test_an_actor_gets_its_own_variables(ray_actors, hire):
    actor = await hire(environment={"VLLM_ENABLE_V1_MULTIPROCESSING": "0"})
    seen = await ray_actors.wait_for(actor.call("environment"), deadline_s=60, what="look")
    assert seen["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert seen["OMP_NUM_THREADS"] == "1"
    assert (seen["RAY_USAGE_STATS_ENABLED"], seen["VLLM_NO_USAGE_STATS"]) == ("0", "1")


DRIVER = """
import asyncio, json, sys, time
from pathlib import Path
from mappa_engine.cluster.actors import RayActors
from mappa_core.errors import EngineLost
class Clerk:
    def __init__(self):
        print("here I am", flush=True)
    def rest(self):
        time.sleep(600)
async def main():
    for _ in "ab":
        ray_actors = await RayActors.open(cpus=4, gpus=0, store_mb=100, deadline_s=240, logs=Path(sys.argv[1]))
        clerks = [await ray_actors.start(Clerk, name=name, role="clerk", deadline_s=120) for name in "ab"]
        call = clerks[0].call("rest")
        print(json.dumps([clerk.process.pid for clerk in clerks]), flush=True)
        try:
            await ray_actors.wait_for(call, deadline_s=600, what="rest")
        except EngineLost as lost:
            await ray_actors.close()
            print(json.dumps([type(lost).__name__]), flush=True)
asyncio.run(main())
"""


@pytest.fixture
def driver(tmp_path: Path):
    """A driver of its own that opens a ray_actors again when it lost one; its environment has keys in it."""
    environment = {**os.environ, **dict.fromkeys(KEYS, CANARY), "TMPDIR": str(tmp_path)}
    (tmp_path / "driver.py").write_text(DRIVER)
    program = [sys.executable, str(tmp_path / "driver.py"), str(tmp_path / "logs")]
    with subprocess.Popen(program, stdout=-1, env=environment, text=True) as process:
        yield process
        process.kill()


async def test_no_process_has_a_key_or_outlives_its_driver(driver, tmp_path):
    clerks = told(driver)
    family = psutil.Process(driver.pid).children(recursive=True)
    assert clerks <= {process.pid for process in family}
    seen = {process.pid: Path(f"/proc/{process.pid}/environ").read_bytes() for process in family}
    assert [pid for pid, variables in seen.items() if CANARY.encode() in variables] == []
    assert all(b"RAY_USAGE_STATS_ENABLED=0" in seen[pid] for pid in clerks)
    head = next(process for process in family if "mappa_engine.cluster.actors.ray_head" in process.cmdline())
    next(process for process in family if process.name() == "gcs_server").kill()
    assert told(driver) == {"ActorLost"}
    assert left(family, patience_s=0) == []
    assert list(Path(tempfile.gettempdir()).glob(f"mappa-*/session_*_{head.pid}")) == []
    assert ["here I am" in log.read_text() for log in (tmp_path / "logs").glob("worker-*.out")] == [True, True]

    again = told(driver)
    family = psutil.Process(driver.pid).children(recursive=True)
    assert again.isdisjoint(clerks)
    os.kill(max(again), signal.SIGSTOP)
    driver.kill()
    assert left(family, patience_s=90) == []


GUEST = """
import asyncio, sys
from mappa_engine.cluster.actors import RayActors
class Clerk:
    def look(self):
        import os, mappa_core, mappa_mathchat
        return mappa_core.__file__, mappa_mathchat.__file__, dict(os.environ)
async def main():
    ray_actors = await RayActors.open(sys.argv[1], deadline_s=120)
    clerk = await ray_actors.start(Clerk, name="guest", role="clerk", deadline_s=200)
    core, plugin, seen = await ray_actors.wait_for(clerk.call("look"), deadline_s=60, what="look")
    assert "py_modules_files" in core and "py_modules_files" in plugin, (core, plugin)
    assert seen["NCCL_DEBUG"] == "WARN" and sys.argv[2] not in str(seen), seen
    await ray_actors.close()
asyncio.run(main())
"""


async def test_running_ray_gets_packages_and_keeps_running(ray_actors, hire, tmp_path):
    (tmp_path / "guest.py").write_text(GUEST)
    address = ray.get_runtime_context().gcs_address
    environment = {**os.environ, **dict.fromkeys(KEYS, CANARY), "NCCL_DEBUG": "WARN"}
    program = [sys.executable, str(tmp_path / "guest.py"), address, CANARY]
    # From a folder of its own: Ray lets actors import what lies where the driver was started.
    run = {"env": environment, "cwd": tmp_path, "capture_output": True, "text": True}
    done = await asyncio.to_thread(subprocess.run, program, **run)
    assert done.returncode == 0, done.stderr
    assert await ray_actors.wait_for((await hire(1)).call("add", 1), deadline_s=60, what="add") == 2


TERMINATED = """
import asyncio, os, signal, sys
from mappa_engine.cluster.actors import RayActors

async def main():
    ray_actors = await RayActors.open(sys.argv[1], deadline_s=200)
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(100)
    finally:
        await ray_actors.close()
        print("closed")

signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
asyncio.run(main())
"""


async def test_terminated_driver_closes_everything(ray_actors, tmp_path):
    command = [sys.executable, "-c", TERMINATED, ray.get_runtime_context().gcs_address]
    done = await asyncio.to_thread(subprocess.run, command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (143, "closed\n"), done.stderr


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("127.0.0.1:1", "where no Ray can be reached"),
        ("ray://127.0.0.1:10001", "it can be auto or HOST:PORT"),
    ],
)
async def test_an_address_without_a_ray_is_refused_at_once(address, said):
    imports = "import asyncio\nfrom mappa_engine.cluster.actors import RayActors"
    program = f"{imports}\nasyncio.run(RayActors.open({address!r}))"
    done = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1
    assert f"ConfigError: engine.options.address is {address!r}" in done.stderr
    assert said in done.stderr


def told(driver) -> set[Any]:
    """What the driver tells next: the process ids of actors, or the error that it met."""
    line = next((line for line in driver.stdout if line.startswith("[")), None)
    assert line is not None, "the driver ended"
    return set(json.loads(line))


def left(family: list[psutil.Process], patience_s: float) -> list[psutil.Process]:
    """Who of them is there after at most so many seconds."""
    until = time.monotonic() + patience_s
    while there := [process for process in family if process.is_running() and not ended(process)]:
        if time.monotonic() > until:
            return there
        time.sleep(0.1)
    return []


def ended(process: psutil.Process) -> bool:
    """Whether it waits for its parent only to take note."""
    with suppress(psutil.NoSuchProcess):
        return process.status() == psutil.STATUS_ZOMBIE
    return True
