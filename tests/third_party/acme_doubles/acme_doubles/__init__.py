"""A team that doubles numbers, without a model, and coaches with different failures: runs for tests of reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from importlib.resources.abc import Traversable
from random import Random
from typing import Any

from mappa.testing import ScriptedEngine
from mappa_core import (
    Coach,
    Message,
    NoOptions,
    Offer,
    PromptTooLong,
    Role,
    Scene,
    Stage,
    Task,
    Usage,
    Verdict,
    Workflow,
    hookimpl,
)
from mappa_core.coach import Cassette
from mappa_core.transport import Provider


class Numbers:
    def __init__(self, options: NoOptions) -> None:
        pass

    def load(self, split: str) -> Sequence[Task]:
        numbers = range(2, 12) if split == "train" else range(20, 24)
        return [
            Task(id=f"n{n}", prompt=str(n), reference=str(2 * n), stratum="even" if n % 2 == 0 else "odd")
            for n in numbers
        ]


class Doubles(Workflow):
    """One agent doubles, the other repeats the result."""

    def __init__(self, options: NoOptions) -> None:
        self.agents = {"doubler": Role(brief="Doubles."), "checker": Role(brief="Repeats.")}

    async def run(self, stage: Stage) -> None:
        doubled = await stage.act("doubler", [Message(role="user", content=f"double {stage.task.prompt}")])
        if stage.task.prompt == "11":
            raise PromptTooLong("eleven does not fit")
        checked = await stage.act("checker", [Message(role="user", content=f"repeat {doubled.reply.content}")])
        stage.record(correct=await stage.grade(checked.reply.content))

    async def grade(self, text: str, task: Task) -> float:
        return float(text == task.reference)


def script(prompt: str, sampling: Any) -> str:
    """Doubles even numbers alone, so that about half of the actions are right."""
    order, number = prompt.removeprefix("<user>").removesuffix("<assistant>").split()
    return str(2 * int(number)) if order == "double" and int(number) % 2 == 0 else number


def is_right(scene: Scene) -> bool:
    """Whether the trajectory is about an even number."""
    first = (*scene.earlier, scene.step)[0]
    return int(first.messages[0].content.removeprefix("double ")) % 2 == 0


@dataclass
class StrictOptions:
    right: float = 10.0
    """Points for an action of a trajectory that is right."""
    wrong: float = 0.0


class Strict(Coach):
    """Scores by the known truth."""

    def __init__(self, options: StrictOptions) -> None:
        self._options = options

    async def score(self, scene: Scene) -> Verdict:
        return Verdict.scored(self._options.right if is_right(scene) else self._options.wrong, "compared")


@dataclass
class MoodyOptions:
    noise: float = 2.0
    """Standard deviation of its scores around 7 and 3 points."""
    seed: int = 0


class Moody(Coach):
    """Scores by the known truth, with noise."""

    def __init__(self, options: MoodyOptions) -> None:
        self._options = options
        self._times: Counter[str] = Counter()

    async def score(self, scene: Scene) -> Verdict:
        self._times[scene.step.id] += 1
        random = Random(f"{self._options.seed}/{scene.step.id}/{self._times[scene.step.id]}")
        points = (7 if is_right(scene) else 3) + random.gauss(0, self._options.noise)
        return Verdict.scored(min(max(points, 0.0), 10.0), "felt")


@dataclass
class PatchyOptions:
    fails: str = "checker"
    """The agent whose actions it fails on."""


class Patchy(Strict):
    """Abstains from odd numbers of one agent and breaks on the even ones."""

    def __init__(self, options: PatchyOptions) -> None:
        super().__init__(StrictOptions())
        self._fails = options.fails

    async def score(self, scene: Scene) -> Verdict:
        if scene.step.agent != self._fails:
            return await super().score(scene)
        if is_right(scene):
            raise ConnectionError("no route to the coach")
        return Verdict.abstained("it is odd")


@dataclass
class PaidOptions:
    model: str = "???"
    usd: float | None = 0.01
    """Price of a verdict; null: unknown."""


class Paid(Strict):
    """Pretends to call a paid provider, and records its verdicts on a cassette."""

    def __init__(self, options: PaidOptions) -> None:
        super().__init__(StrictOptions(right=0.0, wrong=10.0))
        self._paid = options
        self._cassette: Cassette | None = None

    @property
    def providers(self) -> tuple[Provider, ...]:
        return (Provider(name="paid", model=self._paid.model, host="paid.example", priced=self._paid.usd is not None),)

    def use_cassette(self, cassette: Cassette) -> None:
        self._cassette = cassette

    async def score(self, scene: Scene) -> Verdict:
        address = f"{self._paid.model}/{scene.step.id}"
        kept = None if self._cassette is None else self._cassette.get(address)
        if kept is not None:
            return replace(kept, replayed=True)
        points = (await super().score(scene)).score
        verdict = Verdict(status="scored", score=points, usage=Usage(calls=1, usd=self._paid.usd))
        if self._cassette is not None:
            self._cassette.put(address, verdict)
        return verdict


class Looking(Strict):
    """Scores only with the outcome, in hindsight."""

    async def score(self, scene: Scene) -> Verdict:
        if scene.outcome is None:
            return Verdict.abstained("there is no outcome to look back from")
        return Verdict.scored(10.0 * scene.outcome["correct"], "looked back")


def no_loss(new_logprobs: Any, rows: Any, advantages: Any) -> Any:
    raise AssertionError("a scripted engine learns nothing")


@hookimpl
def mappa_tasks() -> Iterable[Offer[Any]]:
    yield Offer("numbers", Numbers)


@hookimpl
def mappa_workflows() -> Iterable[Offer[Any]]:
    yield Offer("doubles", Doubles)


@hookimpl
def mappa_coaches() -> Iterable[Offer[Any]]:
    yield Offer("strict", Strict, StrictOptions)
    yield Offer("moody", Moody, MoodyOptions)
    yield Offer("patchy", Patchy, PatchyOptions)
    yield Offer("paid", Paid, PaidOptions)
    yield Offer("looking", Looking, StrictOptions)


@hookimpl
def mappa_losses() -> Iterable[Offer[Any]]:
    yield Offer("no_loss", lambda options: no_loss)


@hookimpl
def mappa_engines() -> Iterable[Offer[Any]]:
    yield Offer("scripted", lambda options: ScriptedEngine(script))


@hookimpl
def mappa_recipes() -> Mapping[str, Traversable]:
    return {"tiny": files(__name__) / "recipes" / "tiny.yaml"}
