"""A pool of samplers, with processes that are threads of this one: what a lost one owed is asked again."""

import asyncio
import threading
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from types import SimpleNamespace

import numpy as np
import pytest

from mappa_core import ConfigError, Sampling
from mappa_core.engine import EngineError, EngineLost, Process
from mappa_engine.cluster.errors import ActorLost, ActorTimeout, NodeLost
from mappa_engine.cluster.samplers.messages import Generation, RequestResult, SamplerConfig
from mappa_engine.cluster.samplers.pool import MAX_ATTEMPTS, SamplerPool
from mappa_engine.cluster.samplers.remote_engine import Deadlines, EngineResources


class Server:
    """An engine that answers a wave when it is told to, with the number of its process as the only token."""

    def __init__(self, number: int, *, paused: bool) -> None:
        self.number = number
        self.paused = paused
        self.waves: list[tuple[str, ...]] = []
        self.forgotten: list[str] = []
        self.answers: list[RequestResult] = []
        self.fault: Exception | None = None
        self.turn = threading.Condition()

    def submit(self, *wave) -> None:
        self.waves.append(tuple(request.id for request in wave))

    def answer(self, count: int | None = None) -> None:
        """Answer `count` requests that were submitted, all where it is None."""
        token = np.array([self.number], np.int32)
        generation = Generation(
            tokens=token, logprobs=np.zeros(1, np.float32), finish="length", versions=(), seconds=0.0
        )
        with self.turn:
            asked = [request for wave in self.waves for request in wave]
            self.answers += [RequestResult(id=key, generation=generation) for key in asked[:count]]
            self.turn.notify_all()

    def fail(self, error: Exception) -> None:
        with self.turn:
            self.fault = error
            self.turn.notify_all()

    def take_results(self, wait_s: float) -> tuple[RequestResult, ...]:
        with self.turn:
            self.turn.wait_for(lambda: self.answers or self.fault, wait_s)
            if self.fault is not None:
                raise self.fault
            answers, self.answers = tuple(self.answers), []
        return answers

    def abort(self, *ids: str) -> None:
        self.forgotten += ids

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    def activate(self, policy: str, version: int) -> None:
        self.paused = False


class RayActors:
    """Starts servers. `doomed` ones cannot be started."""

    def __init__(self) -> None:
        self.servers: dict[str, list[Server]] = {}
        self.doomed: Exception | None = None

    async def start(self, actor, setup, *, paused, name, **_):
        if self.doomed is not None:
            raise self.doomed
        server = Server(len(self.servers.setdefault(name, [])), paused=paused)
        self.servers[name].append(server)
        process = Process(role="sampler", pid=server.number, host="here")
        return SimpleNamespace(server=server, process=process, call=lambda method, *args: called(server, method, args))

    async def wait_for(self, call, *, deadline_s, what):
        async with asyncio.timeout(deadline_s):
            return await asyncio.wrap_future(call)

    async def end(self, actor) -> None:
        actor.server.fail(ActorLost("ended", actor="one"))


def called(server: Server, method: str, args) -> Future:
    future: Future = Future()

    def work() -> None:
        try:
            value = getattr(server, method)(*args)
        except Exception as error:  # noqa: BLE001 - raised to who waits for the call
            with suppress(InvalidStateError):
                future.set_exception(error)
        else:
            with suppress(InvalidStateError):
                future.set_result(value)

    if method == "submit":
        work()  # in the order of the calls, whatever threads do
    else:
        threading.Thread(target=work, daemon=True).start()
    return future


SETUP = SamplerConfig(model="m", device="cpu", dtype="float32", window=64, kv_cache_bytes=1, max_batch=8)
LOST = ActorLost("it is gone", actor="one")


@pytest.fixture
async def opened():
    """Open a pool of fake engines: `pool, fleet, refreshed = await opened(engines, …)`."""
    pools = []

    async def open_pool(engines: int, *, setup=SETUP, full=True, call_s=60.0, refresh=None):
        ray_actors, refreshed = RayActors(), []

        async def note(name: str) -> None:
            refreshed.append(name)
            if refresh is not None:
                await refresh(name)
            (engine,) = [engine for engine in pool.engines if engine.name == name]
            if full:
                await engine.activate("solver", 1)

        deadlines = Deadlines(start_s=5, sync_s=5, call_s=call_s)
        pool = SamplerPool(
            ray_actors, setup, [EngineResources()] * engines, name="p", full=full, deadlines=deadlines, refresh=note
        )
        await pool.open()
        pools.append(pool)
        return pool, ray_actors, refreshed

    yield open_pool
    for pool in pools:
        await pool.close()


def sample(pool, count: int, *, length: int = 4) -> list[asyncio.Task]:
    prompt = np.arange(length, dtype=np.int32)
    return [
        asyncio.create_task(pool.sample("solver", prompt, Sampling(max_tokens=8), frozenset({2}))) for _ in range(count)
    ]


async def submitted(ray_actors: RayActors, name: str, start: int = -1) -> Server:
    """The process of an engine, once something was submitted to it."""
    for _ in range(500):
        servers = ray_actors.servers[name]
        if len(servers) > max(start, 0) and servers[start].waves:
            return servers[start]
        await asyncio.sleep(0.01)
    raise AssertionError(f"nothing was submitted to {name}")


async def test_one_wave_is_spread_over_engines(opened):
    pool, ray_actors, _ = await opened(2)
    tasks = sample(pool, 6)
    for name in ("sampler-p-0", "sampler-p-1"):
        server = await submitted(ray_actors, name)
        assert [len(wave) for wave in server.waves] == [3]
        server.answer()
    assert len(await asyncio.gather(*tasks)) == 6


async def test_requests_of_a_lost_engine_are_sent_again(opened):
    gate = asyncio.Event()

    async def refresh(name: str) -> None:
        await gate.wait()

    pool, ray_actors, refreshed = await opened(1, refresh=refresh)
    tasks = sample(pool, 3)
    first = await submitted(ray_actors, "sampler-p-0")
    first.answer(1)
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    first.fail(LOST)
    second = await submitted(ray_actors, "sampler-p-0", start=1)
    assert second.waves == [first.waves[0][1:]]
    assert second.paused
    gate.set()
    second.answer()
    tokens = [completion.tokens.tolist() for completion in await asyncio.gather(*tasks)]
    assert tokens == [[0], [1], [1]]
    assert not second.paused
    assert refreshed == ["sampler-p-0"]
    assert pool.restarts == 1


async def test_restarted_adapter_engine_resumes_after_its_refresh(opened):
    pool, ray_actors, refreshed = await opened(1, full=False)
    (task,) = sample(pool, 1)
    (await submitted(ray_actors, "sampler-p-0")).fail(LOST)
    second = await submitted(ray_actors, "sampler-p-0", start=1)
    second.answer()
    await task
    assert refreshed == ["sampler-p-0"]
    assert not second.paused


async def test_isolated_waves_are_split_by_order_and_resent_whole(opened):
    setup = SamplerConfig(
        model="m", device="cpu", dtype="float32", window=64, kv_cache_bytes=1, max_batch=8, isolate_waves=True
    )
    pool, ray_actors, _ = await opened(2, setup=setup)
    tasks = sample(pool, 3)
    await asyncio.sleep(0)
    tasks += sample(pool, 2, length=9)
    first = await submitted(ray_actors, "sampler-p-0")
    await submitted(ray_actors, "sampler-p-1")
    while len(first.waves) < 2:
        await asyncio.sleep(0.01)
    assert first.waves == [("0", "2"), ("3",)]
    assert ray_actors.servers["sampler-p-1"][0].waves == [("1",), ("4",)]
    first.fail(LOST)
    second = await submitted(ray_actors, "sampler-p-0", start=1)
    assert second.waves == first.waves
    second.answer()
    ray_actors.servers["sampler-p-1"][0].answer()
    await asyncio.gather(*tasks)


async def test_new_requests_avoid_lost_engines(opened):
    gate = asyncio.Event()

    async def refresh(name: str) -> None:
        await gate.wait()

    pool, ray_actors, _ = await opened(2, refresh=refresh)
    ray_actors.servers["sampler-p-0"][0].fail(LOST)
    while not pool.engines[0].stale:
        await asyncio.sleep(0.01)
    tasks = sample(pool, 4)
    server = await submitted(ray_actors, "sampler-p-1")
    assert [len(wave) for wave in server.waves] == [4]
    server.answer()
    await asyncio.gather(*tasks)
    gate.set()


async def test_engine_beyond_an_action_deadline_is_restarted(opened, monkeypatch):
    monkeypatch.setattr("mappa_engine.cluster.samplers.remote_engine.POLL_S", 0.05)
    pool, ray_actors, _ = await opened(1, call_s=0.2)
    (task,) = sample(pool, 1)
    second = await submitted(ray_actors, "sampler-p-0", start=1)
    second.answer()
    assert (await task).tokens.tolist() == [1]


async def test_stalled_driver_restarts_no_engine(opened, monkeypatch):
    """Of two actions one is delivered first; the driver then stalls, and takes the other with the next poll."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(
        "mappa_engine.cluster.samplers.remote_engine.time", SimpleNamespace(monotonic=lambda: clock.now)
    )
    pool, ray_actors, _ = await opened(1, call_s=100.0)
    tasks = sample(pool, 2)
    server = await submitted(ray_actors, "sampler-p-0")
    clock.now += 3600.0
    server.answer(1)
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    server.answer()
    assert [completion.tokens.tolist() for completion in await asyncio.gather(*tasks)] == [[0], [0]]
    assert pool.restarts == 0


async def test_failed_restarts_fail_all_requests(opened):
    pool, ray_actors, _ = await opened(1)
    tasks = sample(pool, 2)
    server = await submitted(ray_actors, "sampler-p-0")
    ray_actors.doomed = ActorTimeout("no place for it", actor="one")
    server.fail(LOST)
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(result, ActorTimeout)
    with pytest.raises(ActorTimeout):
        await sample(pool, 1)[0]
    assert len(ray_actors.servers["sampler-p-0"]) == 1
    assert MAX_ATTEMPTS >= 2


async def test_engine_on_a_lost_node_fails_the_pool(opened):
    pool, ray_actors, _ = await opened(2)
    tasks = sample(pool, 2)
    ray_actors.doomed = NodeLost("the node 10.0.0.2 is gone", actor="one")
    (await submitted(ray_actors, "sampler-p-0")).fail(LOST)
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(result, NodeLost)


async def test_start_errors_are_raised_unchanged():
    ray_actors = RayActors()
    ray_actors.doomed = ConfigError("kv_cache_mb is too small")
    deadlines = Deadlines(start_s=5, sync_s=5, call_s=5)
    pool = SamplerPool(
        ray_actors,
        SETUP,
        [EngineResources()] * 2,
        name="p",
        full=True,
        deadlines=deadlines,
        refresh=lambda name: asyncio.sleep(0),
    )
    with pytest.raises(ConfigError, match="kv_cache_mb"):
        await pool.open()


@pytest.mark.parametrize("fault", [MemoryError("no room"), RuntimeError("CUDA out of memory"), LOST])
async def test_whatever_ends_an_engine_it_is_replaced_and_the_reason_is_kept(opened, fault):
    pool, ray_actors, refreshed = await opened(1)
    tasks = sample(pool, 2)
    for start in range(MAX_ATTEMPTS - 1):
        (await submitted(ray_actors, "sampler-p-0", start=start)).fail(fault)
    (await submitted(ray_actors, "sampler-p-0", start=MAX_ATTEMPTS - 1)).answer()
    assert [completion.tokens.tolist() for completion in await asyncio.gather(*tasks)] == [[MAX_ATTEMPTS - 1]] * 2
    assert refreshed == ["sampler-p-0"] * (MAX_ATTEMPTS - 1)
    (engine,) = pool.engines
    assert [str(fault) in reason for reason in engine.actor.process.lost] == [True] * (MAX_ATTEMPTS - 1)


async def test_a_fault_that_repeats_ends_after_three_restarts_with_its_traceback(opened):
    pool, ray_actors, _ = await opened(1)
    (task,) = sample(pool, 1)
    fault = IndexError("a bug of its own")
    fault.add_note("Raised in an actor:\nTraceback")
    for start in range(MAX_ATTEMPTS + 1):
        (await submitted(ray_actors, "sampler-p-0", start=start)).fail(fault)
    with pytest.raises(EngineLost, match="IndexError: a bug of its own\nRaised in an actor:\nTraceback"):
        await task
    assert len(ray_actors.servers["sampler-p-0"]) == MAX_ATTEMPTS + 1 == 4


async def test_an_engine_that_does_not_open_again_is_tried_again(opened):
    pool, ray_actors, _ = await opened(1)
    (task,) = sample(pool, 1)
    server = await submitted(ray_actors, "sampler-p-0")
    ray_actors.doomed = ConfigError("less memory is free than the engine takes")
    server.fail(LOST)
    with pytest.raises(EngineLost, match="does not open again: less memory is free"):
        await task


async def test_cancelled_request_is_aborted(opened):
    pool, ray_actors, _ = await opened(1)
    one, other = sample(pool, 2)
    server = await submitted(ray_actors, "sampler-p-0")
    one.cancel()
    with pytest.raises(asyncio.CancelledError):
        await one
    server.answer()
    await other
    for _ in range(100):
        if server.forgotten:
            break
        await asyncio.sleep(0.01)
    assert server.forgotten == ["0"]
    assert pool.engines[0].load == 0


async def test_closing_fails_pending_requests(opened):
    pool, ray_actors, _ = await opened(1)
    (task,) = sample(pool, 1)
    await submitted(ray_actors, "sampler-p-0")
    (late,) = sample(pool, 1)
    await asyncio.sleep(0)
    await pool.close()
    for waiting in (task, late, *sample(pool, 1)):
        with pytest.raises(EngineError, match="closed"):
            await waiting
