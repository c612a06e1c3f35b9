"""CPU time per action of the driver, with few and with many trajectories, agents and engines at once.

A whole run is trained: scheduler, collector, stage, store, pools and samplers of the cluster engine are the real ones.
Stubbed are the actors behind their interfaces: samplers answer every request after a time between 10 and 50 ms with the
same tokens, learners return at once what they were given; the coach gives every action the same score. Measured is user
and system time of the driver's process from a publish to the score of what was collected, after an iteration to warm
up; a number of trajectories is that of an iteration, all played at once by four samples of each task.

Every cell is a process of its own. The ratio is of the largest number of trajectories by the smallest, with engines in
proportion, median over interleaved rounds with a 95 % bootstrap interval; the table shows further cells.

    python bench/driver.py [--rounds 5] [--quick]
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import structlog
from measure import cpu_seconds, print_result

from mappa.training import Run
from mappa_core.experience import Advantages, Experience, Receipt
from mappa_core.hookspecs import Offer, hookimpl
from mappa_core.plugins import load_plugins
from mappa_core.protocols import Coach, Engine, Loss, PolicySpec, Stage, TaskSource, Workflow
from mappa_core.records import Message, Role, Scene, Task, ToolSpec, Verdict, VersionSpan
from mappa_engine.cluster.samplers.messages import Generation, GenerationRequest, RequestResult, SamplerConfig
from mappa_engine.cluster.samplers.pool import SamplerPool
from mappa_engine.cluster.samplers.remote_engine import Deadlines, EngineResources
from mappa_engine.cluster.samplers.sampler import ClusterSampler

SAMPLES = 4
ACTION_S = (0.010, 0.050)
SPOKEN = "The plan is right and the program follows it, so the answer is 30."
TOKENS = np.frombuffer(SPOKEN.encode() + b"\n", dtype=np.uint8).astype(np.int32)
RECIPE = """
tasks: {use: numbered}
workflow: {use: line}
policies: {default: {model: none}}
sampling: {max_tokens: 64}
coach: {use: same}
estimator: {use: reinforce}
engine: {use: stubbed}
eval: {problems: 1}
checkpoint: {every: 1000}
train: {samples: 4}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Trajectories of an iteration, all at once; agents, each with a policy of its own; engines of all policies."""

    trajectories: int
    agents: int
    engines: int
    waves: bool = False

    def __str__(self) -> str:
        words = f"{self.trajectories} trajectories, {self.agents} agents, {self.engines} engines"
        return f"{words}, in waves" if self.waves else words

    @property
    def words(self) -> list[str]:
        return [str(self.trajectories), str(self.agents), str(self.engines), *(["waves"] if self.waves else [])]

    @property
    def actions(self) -> int:
        return self.trajectories * self.agents


FEW = 64
LARGE = Cell(trajectories=10_000, agents=3, engines=1_000)
OTHERS = (
    Cell(trajectories=64, agents=3, engines=1_000),
    Cell(trajectories=64, agents=30, engines=60),
    Cell(trajectories=64, agents=3, engines=6, waves=True),
    Cell(trajectories=1_000, agents=3, engines=100),
    Cell(trajectories=1_000, agents=30, engines=1_000),
    Cell(trajectories=10_000, agents=3, engines=3),
    Cell(trajectories=10_000, agents=3, engines=100, waves=True),
)
"""Cells that are shown once, with the same seed of everything."""


class Numbered(TaskSource):
    def __init__(self, count: int) -> None:
        self._count = count

    def load(self, split: str) -> Sequence[Task]:
        numbers = range(self._count if split == "train" else 1)
        return [Task(id=f"{split}{number:05d}", prompt=f"Problem {number}: {SPOKEN}") for number in numbers]


class Line(Workflow):
    """Every agent acts once, on the task and what the agent before it said."""

    def __init__(self, agents: int) -> None:
        self.agents = {f"agent{number:02d}": Role(brief="acts once") for number in range(agents)}

    async def run(self, stage: Stage) -> None:
        said = ""
        for agent in self.agents:
            step = await stage.act(agent, [Message(role="user", content=f"{stage.task.prompt}\n{said}")])
            said = step.reply.content
        stage.record(correct=1.0)


class Same(Coach):
    async def score(self, scene: Scene) -> Verdict:
        return Verdict.scored(7, "the same for everyone")


class Chat:
    """Stands for a chat template and tokenizer: a token is a byte."""

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec], kwargs: Mapping[str, Any]) -> Any:
        text = "".join(f"<{message.role}>{message.content}" for message in messages)
        return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int32)

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(tokens).decode()

    def reply(self, completion: Any) -> Message:
        return Message(role="assistant", content=completion.text)


class StubbedServer:
    """A sampler actor, as the driver sees it: calls return awaitables, `take_results` waits until there are some."""

    def __init__(self, name: str, engine: StubbedEngine) -> None:
        self._engine = engine
        self._random = Random(name)
        self._loop = asyncio.get_running_loop()
        self._results: list[RequestResult] = []
        self._waiting: asyncio.Future[tuple[RequestResult, ...]] | None = None

    def call(self, method: str, *args: Any) -> asyncio.Future[Any]:
        answer: asyncio.Future[Any] = self._loop.create_future()
        if method == "take_results":
            self._waiting = answer
            self._loop.call_later(args[0], self._give_up, answer)
            self._hand_over()
            return answer
        if method == "submit":
            for request in args:
                self._loop.call_later(self._random.uniform(*ACTION_S), self._finish, request)
        answer.set_result(None)
        return answer

    def _finish(self, request: GenerationRequest) -> None:
        generation = Generation(
            tokens=TOKENS,
            logprobs=np.full(len(TOKENS), -1.0, dtype=np.float32),
            finish="stop",
            versions=(VersionSpan(version=self._engine.version, start=0, end=len(TOKENS)),),
            seconds=0.0,
        )
        self._results.append(RequestResult(id=request.id, generation=generation))
        self._hand_over()

    def _give_up(self, answer: asyncio.Future[Any]) -> None:
        if not answer.done():
            answer.set_result(())

    def _hand_over(self) -> None:
        if self._results and self._waiting is not None and not self._waiting.done():
            results, self._results = tuple(self._results), []
            self._waiting.set_result(results)


class StubbedActors:
    """Ray's place: starts samplers and waits for their answers."""

    def __init__(self, engine: StubbedEngine) -> None:
        self._engine = engine

    async def start(self, actor: type, *given: Any, name: str, **options: Any) -> StubbedServer:
        return StubbedServer(name, self._engine)

    async def wait_for(self, call: asyncio.Future[Any], *, deadline_s: float, what: str) -> Any:
        async with asyncio.timeout(deadline_s):
            return await call

    async def end(self, actor: StubbedServer) -> None: ...


@dataclass
class StubbedEngine(Engine):
    """Pools and samplers of the cluster engine over stubbed actors, and learners that learn nothing."""

    engines: int
    deterministic: bool = False
    collected_s: list[float] = field(default_factory=list)
    """CPU seconds of every collection, from a publish to the score."""
    version: int = 0
    _since: float = 0.0

    async def open(self, policies: Sequence[PolicySpec], train: Any | None, *, seed: int) -> None:
        config = SamplerConfig(
            model="none", device="cpu", dtype="float32", window=4096, kv_cache_bytes=1, max_batch=256,
            isolate_waves=self.deterministic,
        )  # fmt: skip
        reading: Any = SimpleNamespace(chat=Chat(), stops=frozenset({10}), model_name="none")
        share, more = divmod(self.engines, len(policies))
        self._pools: dict[str, SamplerPool] = {}
        for number, spec in enumerate(policies):
            actors: Any = StubbedActors(self)
            self._pools[spec.name] = SamplerPool(
                actors,
                config,
                [EngineResources()] * max(1, share + (number < more)),
                name=spec.name,
                full=True,
                deadlines=Deadlines(start_s=60, sync_s=60, call_s=600),
                refresh=self._refuse,
            )
            await self._pools[spec.name].open()
        self._samplers = {
            name: ClusterSampler(name, reading, pool, window=4096, template_kwargs={})
            for name, pool in self._pools.items()
        }

    async def _refuse(self, engine: str) -> None:
        raise AssertionError(f"{engine} was started again")

    def sampler(self, policy: str) -> ClusterSampler:
        return self._samplers[policy]

    async def score(self, experience: Experience, *, reference: bool = True) -> Experience:
        self.collected_s.append(cpu_seconds() - self._since)
        return replace(experience, old_logprobs=experience.logprobs, ref_logprobs=experience.logprobs)

    async def update(
        self, experience: Experience, advantages: Advantages, loss: Loss, progress: float
    ) -> Mapping[str, Mapping[str, float]]:
        return {}

    async def publish(self) -> Mapping[str, Receipt]:
        self._since, self.version = cpu_seconds(), self.version + 1
        return {name: Receipt(version=self.version, checksum="") for name in self._pools}

    async def save(self, folder: Path, *, dtype: str = "float32") -> None:
        await asyncio.to_thread(folder.mkdir, parents=True)

    async def load(self, folder: Path) -> None:
        raise AssertionError("a benchmark is never resumed")

    async def close(self) -> None:
        for pool in self._pools.values():
            await pool.close()


class Plugin:
    """What the recipe uses."""

    def __init__(self, cell: Cell, recipe: Path) -> None:
        self._cell, self._recipe = cell, recipe
        self.engine = StubbedEngine(cell.engines, deterministic=cell.waves)

    @hookimpl
    def mappa_tasks(self) -> Iterable[Offer[TaskSource]]:
        yield Offer("numbered", lambda options: Numbered(-(-self._cell.trajectories // SAMPLES)))

    @hookimpl
    def mappa_workflows(self) -> Iterable[Offer[Workflow]]:
        yield Offer("line", lambda options: Line(self._cell.agents))

    @hookimpl
    def mappa_coaches(self) -> Iterable[Offer[Coach]]:
        yield Offer("same", lambda options: Same())

    @hookimpl
    def mappa_engines(self) -> Iterable[Offer[Engine]]:
        yield Offer("stubbed", lambda options: self.engine)

    @hookimpl
    def mappa_recipes(self) -> Mapping[str, Path]:
        return {"line": self._recipe}


def cpu_per_action(cell: Cell) -> float:
    """CPU seconds of the driver per action, after an iteration to warm up."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    with tempfile.TemporaryDirectory(prefix="mappa-bench-") as name:
        recipe = Path(name, "line.yaml")
        recipe.write_text(RECIPE)
        plugin = Plugin(cell, recipe)
        registry = load_plugins(only=("engine", "sandbox"), modules={"bench": plugin})
        measured = max(1, 256 // cell.trajectories) if cell.trajectories >= FEW else 1
        settings = (
            f"run.root={name}",
            f"train.prompts={-(-cell.trajectories // SAMPLES)}",
            f"train.iterations={measured + 1}",
            f"sampling.concurrency={cell.trajectories}",
        )
        Run.from_recipe("bench/line", *settings, registry=registry).train()
        return sum(plugin.engine.collected_s[1:]) / (measured * cell.actions)


def measure(cell: Cell) -> float:
    """`cpu_per_action` in a process of its own."""
    command = [sys.executable, __file__, "--cell", *cell.words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{cell}: {done.stderr[-2000:]}")
    return float(done.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one round of small sizes, without the further cells")
    parser.add_argument("--cell", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.cell:
        trajectories, agents, engines = map(int, given.cell[:3])
        cell = Cell(trajectories=trajectories, agents=agents, engines=engines, waves="waves" in given.cell)
        print(cpu_per_action(cell))
        return
    small = Cell(trajectories=16 if given.quick else FEW, agents=3, engines=6)
    large = replace(small, trajectories=64, engines=24) if given.quick else LARGE
    ratios = []
    for _ in range(1 if given.quick else given.rounds):
        few, many = measure(small), measure(large)
        print(f"{small}: {few * 1e6:.0f} µs an action; {large}: {many * 1e6:.0f} µs")
        ratios.append(many / few)
    for cell in () if given.quick else OTHERS:
        print(f"{cell}: {measure(cell) * 1e6:.0f} µs an action")
    unit = "CPU time per action, many trajectories at once by few"
    print_result("driver", np.array(ratios), unit=unit, against=f"{small}, to {large}")


if __name__ == "__main__":
    main()
