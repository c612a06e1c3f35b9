"""The thread that computes in an engine, with a core that writes numbers instead of vLLM."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from mappa_core import Sampling
from mappa_engine.cluster.samplers.messages import Generation, GenerationRequest
from mappa_engine.cluster.samplers.step_loop import StepError, StepLoop


class Core:
    """Each step gives one token to every request that is not set aside; notes the company of each."""

    def __init__(self, gate: threading.Semaphore | None = None) -> None:
        self.gate = gate
        self.running: dict[str, tuple[GenerationRequest, list[int]]] = {}
        self.held: dict[str, tuple[GenerationRequest, list[int]]] = {}
        self.scores: list[str] = []
        self.company: dict[str, set[frozenset[str]]] = {}
        self.cleared = 0
        self.broken = False
        self.begun = threading.Event()

    @property
    def active(self) -> bool:
        return bool(self.running or self.scores)

    def add(self, request: GenerationRequest) -> None:
        if request.policy == "unknown":
            raise ValueError("no such policy")
        self.running[request.id] = request, []

    def wait_for_first_token(self) -> None:
        self.gate.release(1)
        assert self.begun.wait(10)

    def score(self, key, policy, version, sequence) -> None:
        self.scores.append(key)

    def step(self):
        if self.gate is not None:
            self.gate.acquire()
        if self.broken:
            raise RuntimeError("the core broke")
        scored, self.scores = [(key, np.zeros(1, np.float32)) for key in self.scores], []
        generation = []
        for key, (request, tokens) in list(self.running.items()):
            self.company.setdefault(key, set()).add(frozenset(self.running))
            tokens.append(len(tokens))
            self.begun.set()
            if len(tokens) == request.sampling.max_tokens:
                del self.running[key]
                generation.append((key, completed(tokens)))
        return generation, scored

    def abort(self, ids) -> None:
        for key in ids:
            self.running.pop(key, None)

    def suspend_requests(self) -> None:
        self.held, self.running = self.running, {}

    def resume_requests(self) -> None:
        self.running, self.held = self.held, {}

    def reset_prefix_cache(self) -> None:
        assert not self.active
        self.cleared += 1


def completed(tokens) -> Generation:
    array = np.array(tokens, np.int32)
    return Generation(
        tokens=array, logprobs=np.zeros(len(array), np.float32), finish="length", versions=(), seconds=0.0
    )


def request(name: str, length: int = 3, policy: str = "solver") -> GenerationRequest:
    return GenerationRequest(
        id=name,
        policy=policy,
        prompt=np.array([1], np.int32),
        sampling=Sampling(max_tokens=length),
        stops=frozenset({2}),
    )


@contextmanager
def at_work(core: Core, *, isolate_waves: bool = False) -> Iterator[StepLoop]:
    step_loop = StepLoop(core, isolate_waves=isolate_waves)
    threading.Thread(target=step_loop.run_forever, daemon=True).start()
    yield step_loop


def collect(step_loop: StepLoop, count: int) -> list[str]:
    found: list[str] = []
    while len(found) < count:
        answers = step_loop.take_results(10)
        assert answers, "nothing came"
        found += [answer.id for answer in answers]
    return found


def test_short_requests_do_not_wait_for_long_ones():
    with at_work(Core()) as step_loop:
        step_loop.submit((request("long", 50), request("short", 1)))
        assert collect(step_loop, 2) == ["short", "long"]


def test_isolated_wave_is_decoded_alone():
    core = Core(gate=threading.Semaphore(0))
    with at_work(core, isolate_waves=True) as step_loop:
        step_loop.submit((request("a", 1), request("b", 4)))
        step_loop.submit((request("c", 2),))
        core.gate.release(1)
        assert step_loop.take_results(0.2) == ()
        core.gate.release(3)
        assert [result.id for result in step_loop.take_results(10)] == ["a", "b"]
        core.gate.release(100)
        assert collect(step_loop, 1) == ["c"]
    assert core.company["c"] == {frozenset("c")}
    assert core.cleared == 2


def test_refusals_are_delivered_with_their_wave():
    with at_work(Core(), isolate_waves=True) as step_loop:
        step_loop.submit((request("a"), request("b", policy="unknown")))
        answers = {result.id: result for result in step_loop.take_results(10)}
    assert answers["a"].generation is not None
    assert answers["b"].generation is None
    assert answers["b"].error == "no such policy"


@pytest.mark.parametrize("isolate_waves", [False, True])
def test_paused_loop_computes_only_scores(isolate_waves):
    core = Core(gate=threading.Semaphore(0))
    with at_work(core, isolate_waves=isolate_waves) as step_loop:
        step_loop.submit((request("a", 9),))
        core.wait_for_first_token()
        paused = step_loop.start(step_loop.pause)
        core.gate.release(1)
        paused.result(10)
        step_loop.submit((request("b", 1),))
        core.gate.release(1)
        assert len(step_loop.logprobs("solver", 0, [np.array([1, 2], np.int32)])) == 1
        assert step_loop.take_results(0.1) == ()
        assert core.held
        step_loop.run(step_loop.resume)
        core.gate.release(100)
        assert sorted(collect(step_loop, 2)) == ["a", "b"]


def test_aborted_requests_give_no_result():
    core = Core(gate=threading.Semaphore(0))
    with at_work(core) as step_loop:
        step_loop.submit((request("held", 9), request("kept", 9)))
        core.wait_for_first_token()
        paused = step_loop.start(step_loop.pause)
        core.gate.release(1)
        paused.result(10)
        step_loop.submit((request("waiting", 1),))
        step_loop.run(step_loop.abort, ["held", "waiting"])
        step_loop.run(step_loop.resume)
        core.gate.release(100)
        assert collect(step_loop, 1) == ["kept"]
        assert step_loop.take_results(0.1) == ()


def test_failed_step_fails_all_calls():
    core = Core()
    core.broken = True
    with at_work(core) as step_loop:
        step_loop.submit((request("a"),))
        with pytest.raises(StepError, match="the core broke"):
            step_loop.take_results(10)
        with pytest.raises(StepError, match="the core broke"):
            step_loop.submit((request("b"),))
        with pytest.raises(StepError, match="the core broke"):
            step_loop.run(step_loop.pause)


def test_failed_job_fails_only_its_caller():
    def job() -> None:
        raise ValueError("a job broke")

    with at_work(Core()) as step_loop:
        with pytest.raises(ValueError, match="a job broke"):
            step_loop.run(job)
        step_loop.submit((request("a"),))
        assert collect(step_loop, 1) == ["a"]
