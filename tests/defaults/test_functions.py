"""Functions, classes and lists as offers: what their signatures make of them, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest

from mappa import coach, shaper, tool
from mappa.sessions import compose
from mappa.testing import ShaperContract, TaskSourceContract, ToolContract, load_plugins, play
from mappa_core import (
    Coach,
    ConfigError,
    Message,
    PluginError,
    Rewards,
    Role,
    Scene,
    Shaper,
    Stage,
    Task,
    TaskError,
    TaskSource,
    Tool,
    ToolLimits,
    Trajectory,
    Verdict,
    Workflow,
    Workspace,
)
from mappa_core.defaults.functions import FunctionOptions, adapt, kind_of, options_of
from mappa_core.defaults.objects import ObjectPlugin

TASK = Task(id="1", prompt="say it", reference="it")


class Solo(Workflow):
    agents: Mapping[str, Role] = {"solo": Role(brief="Answers.")}

    async def run(self, stage: Stage) -> None:
        await stage.act("solo", [Message(role="user", content=stage.task.prompt)])


@dataclass
class Options:
    limit: int = 3


class Limited(Solo):
    def __init__(self, options: Options) -> None:
        self.limit = options.limit


@tool
def weigh(
    what: str,
    times: Annotated[int, "How often."] = 1,
    unit: Literal["kg", "g"] = "kg",
    *,
    workspace: Workspace,
    limits: ToolLimits,
) -> str:
    """Weigh a thing."""
    if what == "nothing":
        raise ValueError("nothing weighs nothing")
    if what == "machine":
        raise OSError("the scales are broken")
    return f"{what}: {len(what) * times} {unit}, {len(workspace.changes())} files, {limits.wall_s:g} s"


class TestTool(ToolContract):
    arguments: Mapping[str, Any] = {"what": "salt", "times": 2}
    nonsense = ({"what": "nothing"},)

    def tool(self) -> Tool:
        return adapt("tools", weigh, "here")


def test_a_tool_is_described_by_its_signature_and_its_docstring():
    spec = adapt("tools", weigh, "here").spec
    assert (spec.name, spec.description) == ("weigh", "Weigh a thing.")
    assert spec.schema == {
        "type": "object",
        "properties": {
            "what": {"type": "string"},
            "times": {"type": "integer", "description": "How often.", "default": 1},
            "unit": {"enum": ["g", "kg"], "default": "kg"},
        },
        "required": ["what"],
        "additionalProperties": False,
    }


class Shelf:
    """A workspace of a test."""

    def changes(self) -> tuple[()]:
        return ()


async def test_a_mistake_of_the_agent_is_a_result_and_a_fault_of_the_tool_is_not():
    built = adapt("tools", weigh, "here")
    good = await built.call({"what": "salt", "times": 2}, Shelf(), ToolLimits())
    assert (good.status, good.stdout) == ("ok", f"salt: 8 kg, 0 files, {ToolLimits().wall_s:g} s")
    wrong = await built.call({"what": "nothing"}, Shelf(), ToolLimits())
    assert (wrong.status, wrong.stderr) == ("error", "nothing weighs nothing")
    with pytest.raises(OSError, match="scales"):
        await built.call({"what": "machine"}, Shelf(), ToolLimits())


@pytest.mark.parametrize(
    ("returned", "stdout"), [(None, ""), ("text", "text"), (3, "3"), ({"a": [1.5, None]}, '{"a":[1.5,null]}')]
)
async def test_a_tool_returns_what_json_can_hold(returned, stdout):
    async def give() -> object:
        """Give it."""
        return returned

    assert (await adapt("tools", give, "here").call({}, Shelf(), ToolLimits())).stdout == stdout


@pytest.mark.parametrize(
    ("given", "score", "reason"),
    [
        (7, 7.0, ""),
        ((0.5, "barely"), 0.5, "barely"),
        (Verdict.scored(3, "so so"), 3.0, "so so"),
        (None, None, "It gave no points."),
    ],
)
@pytest.mark.parametrize("is_async", [False, True])
async def test_a_coach_returns_a_verdict_or_points(given, score, reason, is_async):
    def judge(scene: Scene) -> object:
        return given

    async def judge_later(scene: Scene) -> object:
        return given

    made = adapt("coaches", judge_later if is_async else judge, "here")
    assert isinstance(made, Coach)
    (verdict,) = (await play(Solo(), TASK, ("it",), coach=made)).verdicts
    assert (verdict.score, verdict.reasoning) == (score, reason)


@pytest.mark.parametrize("given", [True, "good", 11, (3, 4), (False, "no")])
async def test_what_is_no_verdict_is_a_failed_one_that_says_so(given):
    (verdict,) = (await play(Solo(), TASK, ("it",), coach=adapt("coaches", lambda scene: given, "here"))).verdicts
    assert verdict.status == "failed" and verdict.error is not None
    assert "0" in verdict.error and repr(given).strip("()") in verdict.error


class TestShaper(ShaperContract):
    def shaper(self) -> Shaper:
        def halve(trajectory: Trajectory, rewards: Rewards) -> Rewards:
            return [None if reward is None else reward / 2 for reward in rewards]  # type: ignore[return-value]

        return adapt("shapers", shaper(halve), "here")


ROWS = [{"prompt": "1+1", "answer": "2", "id": "sum", "level": 1}, {"prompt": "1+2", "answer": 3}]


class TestTasks(TaskSourceContract):
    def source(self) -> TaskSource:
        return adapt("tasks", {"train": ROWS, "eval": [Task(id="held", prompt="2+2", reference="4")]}, "here")


def test_tasks_are_a_list_or_a_mapping_or_a_function_of_the_split():
    def given(split: str) -> Sequence[Task]:
        return [TASK] if split == "eval" else []

    first, second = adapt("tasks", ROWS, "here").load("train")
    assert (first.id, first.prompt, first.reference, first.meta) == ("sum", "1+1", "2", {"level": 1})
    assert (second.id, second.reference) == ("task-2", "3")
    assert adapt("tasks", ROWS, "here").load("eval") == (first, second)
    assert adapt("tasks", [{"prompt": "open"}], "here").load("train")[0].reference is None
    assert adapt("tasks", given, "here").load("eval") == (TASK,)
    assert adapt("tasks", given, "here").load("train") == ()


@pytest.mark.parametrize(
    ("tasks", "said"),
    [
        ([TASK, {"prompt": "x"}], "a list of Task, or of rows"),
        ({"train": [TASK]}, "there are no 'eval' tasks"),
        ([{"answer": "x"}], "here, row 1: no column 'prompt'"),
        ([{"prompt": "x", "id": "a"}, {"prompt": "y", "id": "a"}], "here, row 2: the id 'a'"),
    ],
)
def test_tasks_that_cannot_be_used_are_named(tasks, said):
    with pytest.raises(TaskError, match=said):
        adapt("tasks", tasks, "here").load("eval")


def test_a_class_is_built_with_the_defaults_of_its_options():
    assert options_of(Solo, "here").__name__ == "NoOptions"
    assert options_of(Limited, "here") is Options
    assert adapt("workflows", Limited, "here").limit == 3
    assert adapt("workflows", Limited, "here", Options(limit=5)).limit == 5
    assert isinstance(adapt("workflows", Solo, "here"), Solo)


class Needy(Solo):
    def __init__(self, one: int, other: int) -> None:
        pass


def untyped(what):
    """Say."""


def variadic(*what: str):
    """Say."""


def silent(what: str) -> str:
    return what


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [
        ("workflows", Needy, "__init__ needs one, other"),
        ("workflows", ROWS, "no workflow"),
        ("tools", untyped, "the parameter 'what' of a tool needs a type"),
        ("tools", variadic, "the parameter 'what' of a tool needs a type"),
        ("tools", silent, "has no docstring"),
        ("tools", 3, "no tool, and no function"),
        ("coaches", silent.__get__(3), "a coach is a function of a scene"),
        ("coaches", 3, "no coach, and no function"),
        ("shapers", silent, "a shaper is a function of a trajectory and its rewards"),
        ("tasks", "tasks.jsonl", "tasks are a list"),
        ("tasks", lambda: [], "tasks are a list, or a function of a split"),
    ],
)
def test_what_does_not_fit_is_refused_at_the_start(kind, value, said):
    with pytest.raises(PluginError, match=said):
        adapt(kind, value, "here")


def test_a_mark_is_of_the_function_itself():
    @coach
    class Kind(Coach):
        async def score(self, scene: Scene) -> Verdict:
            return Verdict.scored(1, "")

    class Other(Kind):
        pass

    assert (kind_of(Kind), kind_of(Other), kind_of(weigh), kind_of(ROWS)) == ("coaches", None, "tools", None)


def test_everything_that_can_be_offered_can_be_a_function(tmp_path, monkeypatch):
    (tmp_path / "own_things.py").write_text(
        "from mappa_core import Task\ntasks = [Task(id='1', prompt='x')]\n"
        "def judge(scene):\n    return 5\n"
        "def estimate(experience, state):\n    return None, state\n"
        "def make():\n    return 'made'\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    registry = load_plugins(only=())
    derived = {"transports", "policies"}
    kinds = registry.plugins["core"].offers.keys()
    assert {kind for kind in kinds if "function" in registry.names(kind)} == kinds - derived

    def build(kind: Any, name: str) -> Any:
        return registry.build(kind, "function", FunctionOptions(function=name))

    assert build("tasks", "own_things:tasks").load("train")[0].id == "1"
    assert isinstance(build("coaches", "own_things:judge"), Coach)
    assert build("estimators", "own_things:estimate")(None, {}) == (None, {})
    assert build("trackers", "own_things:make") == "made"
    for name, said in (("own_things", "module:name"), ("own_thing:x", "no module"), ("own_things:x", "has no 'x'")):
        with pytest.raises(PluginError, match=said):
            build("coaches", name)


def team(**given: Any) -> ObjectPlugin:
    return ObjectPlugin.of("team", workflow=Limited, tasks=[TASK], **given)


def judge(scene: Scene) -> float:
    return 5


def test_a_plugin_of_objects_has_a_recipe_of_all_that_it_offers():
    settings: Mapping[str, Any] = {
        "policies.default.model": "m", "train": {"iterations": 2}, "train.prompts": 3, "workflow.options.limit": 7,
    }  # fmt: skip
    plugin = team(coaches=[judge], tools=[weigh], shapers=[shaper(TestShaper().shaper())], settings=settings)
    composed = compose(load_plugins(only=(), modules={"team": plugin}), "team")
    config = composed.config
    assert composed.full_name == "team/plain"
    assert (config.tasks.use, config.workflow.use, config.coach.use) == ("team", "team", "judge")
    assert config.workflow.options == Options(limit=7)
    assert [shaper.use for shaper in config.shapers] == ["scale", "function_shaper"]
    assert config.tools["weigh"].use == "weigh"
    assert (config.train.iterations, config.train.prompts, config.policies["default"].model) == (2, 3, "m")


def test_what_a_plugin_of_objects_lacks_is_a_setting_without_a_value():
    plugin = ObjectPlugin.of("team", workflow=Solo)
    with pytest.raises(ConfigError, match=r"coach\.use, tasks\.use: no value"):
        compose(load_plugins(only=(), modules={"team": plugin}), "team")


def test_two_offers_of_a_name_are_refused():
    with pytest.raises(PluginError, match="two coaches are called 'judge'"):
        team(coaches=[judge, judge])
