"""`mappa train` with mappa-core alone: a provider's model acts, and a third party's coach judges.

A program of `test_core_alone.py`: its arguments are those of `mappa`; what the parts of this project are made of cannot
be imported in it.
"""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

PARTS = ("mappa_engine", "mappa_sandbox", "mappa.look", "mappa_calibration", "mappa_gateway", "mappa_mcp")
MISSING = (*PARTS, "torch", "transformers", "ray", "starlette", "uvicorn", "mcp")


class Missing:
    """A finder by which the parts and their libraries are not installed."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.partition(".")[0] in MISSING:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Missing())

from mappa.cli import main, train  # noqa: E402
from mappa.testing import load_plugins  # noqa: E402
from mappa_core import Coach, Message, NoOptions, Offer, Role, Task, Usage, Verdict, Workflow, hookimpl  # noqa: E402
from mappa_core.transport import Reply, Request  # noqa: E402

RECIPE = """
tasks: {use: numbers}
workflow: {use: doubling}
policies: {default: {kind: api, use: echo}}
coach: {use: strict}
estimator: {use: grpo}
train: {iterations: 2, prompts: 2, samples: 2}
eval: {problems: 2}
"""


@dataclass
class EchoOptions:
    model: str = "echo-1"


class Echo:
    """A provider that doubles the last number that it is sent."""

    host = "nowhere.example"

    def __init__(self, options: EchoOptions) -> None:
        self.model = options.model

    async def complete(self, request: Request) -> Reply:
        text = str(2 * int(request.messages[-1].content))
        return Reply(text=text, stop="end", model=self.model, usage=Usage(calls=1), raw="{}")

    async def count(self, messages: Sequence[Message]) -> int | None:
        return None

    async def close(self) -> None: ...


class Numbers:
    def __init__(self, options: NoOptions) -> None: ...

    def load(self, split: str) -> Iterable[Task]:
        return [Task(id=f"{split}{n}", prompt=str(n), reference=str(2 * n), stratum="all") for n in range(4)]


class Doubling(Workflow):
    agents = {"doubler": Role(brief="doubles")}  # noqa: RUF012

    def __init__(self, options: NoOptions) -> None: ...

    async def run(self, stage: Any) -> None:
        step = await stage.act("doubler", [Message(role="user", content=stage.task.prompt)])
        stage.record(correct=await stage.grade(step.reply.content))

    async def grade(self, text: str, task: Task) -> float:
        return float(text == task.reference)


class Strict(Coach):
    def __init__(self, options: NoOptions) -> None: ...

    async def score(self, scene: Any) -> Verdict:
        return Verdict.scored(8, "doubled")


def plugin(recipe: Path) -> SimpleNamespace:
    """The third party's plugin, as an object with hooks."""
    offers = {
        "mappa_tasks": [Offer("numbers", Numbers)],
        "mappa_workflows": [Offer("doubling", Doubling)],
        "mappa_coaches": [Offer("strict", Strict)],
        "mappa_transports": [Offer("echo", Echo, EchoOptions)],
        "mappa_recipes": {"tiny": recipe},
    }
    hooks = {name: _hook(name, value) for name, value in offers.items()}
    return SimpleNamespace(**hooks)


def _hook(name: str, value: Any) -> Any:
    def hook() -> Any:
        return value

    hook.__name__ = name
    return hookimpl(hook)


if __name__ == "__main__":
    recipe = Path("tiny.yaml")
    recipe.write_text(RECIPE)
    registry = load_plugins(only=(), modules={"doubles": plugin(recipe)})
    train.load_registry = lambda: registry
    sys.exit(main(sys.argv[1:]))
