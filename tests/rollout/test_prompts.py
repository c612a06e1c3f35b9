"""Prompts as parameters: replaced by config, recorded by version, and nothing else changed."""

import asyncio
import json
from hashlib import blake2b
from types import SimpleNamespace

import pytest

from mappa.runs import RunReader
from mappa.sessions import compose, evaluate_standalone
from mappa.testing import FixedCoach, load_plugins, play
from mappa_core import ConfigError, Message, NoOptions, Offer, Role, Task, Workflow, hookimpl
from mappa_core.transport import Reply

TASK = Task(id="t", prompt="2+2", reference="4")


class Guided(Workflow):
    """Two agents, of which the first has a prompt that can be replaced."""

    agents = {"first": Role(brief="begins"), "second": Role(brief="ends")}  # noqa: RUF012
    prompts = {"first": "Begin."}  # noqa: RUF012

    async def run(self, stage):
        begun = await stage.act("first", [Message(role="user", content=f"{self.prompts['first']} {stage.task.prompt}")])
        await stage.act("second", [Message(role="user", content=begun.reply.content)])
        stage.record(correct=1.0)


def version(text: str) -> str:
    return blake2b(text.encode(), digest_size=8).hexdigest()


async def test_step_records_the_version_of_its_prompt():
    trajectory = await play(Guided(), TASK, ["a", "b"])
    assert [step.prompt for step in trajectory.steps] == [version("Begin."), None]
    changed = await play(Guided().with_prompts({"first": "Start."}), TASK, ["a", "b"])
    assert [step.prompt for step in changed.steps] == [version("Start."), None]
    assert changed.steps[0].messages[0].content == "Start. 2+2"


def test_with_prompts_returns_a_copy_with_the_new_prompts():
    workflow = Guided()
    changed = workflow.with_prompts({"first": "Start."})
    assert (workflow.prompts["first"], changed.prompts["first"]) == ("Begin.", "Start.")
    assert Guided.prompts == {"first": "Begin."}


def plugin():
    class Parrot:
        model, host = "parrot", "here"

        def __init__(self, options):
            pass

        async def complete(self, request):
            return Reply(text=request.messages[-1].content, stop="end", model="parrot", raw="")

        async def close(self):
            pass

    class Tasks:
        def load(self, split):
            return [Task(id=f"{split}-1", prompt="2+2", reference="4")]

    hooks = {
        "mappa_transports": lambda: [Offer("parrot", Parrot, NoOptions)],
        "mappa_tasks": lambda: [Offer("sums", lambda options: Tasks(), NoOptions)],
        "mappa_workflows": lambda: [Offer("guided", lambda options: Guided(), NoOptions)],
        "mappa_coaches": lambda: [Offer("fixed", lambda options: FixedCoach(5.0), NoOptions)],
    }
    return SimpleNamespace(**{name: hookimpl(hook) for name, hook in hooks.items()})


@pytest.fixture
def evaluated(tmp_path):
    """Evaluate with settings; the reader of the run."""
    (tmp_path / "base.yaml").write_text(
        "tasks: {use: sums}\nworkflow: {use: guided}\ncoach: {use: fixed}\n"
        "policies: {default: {kind: api, use: parrot}}\n"
    )
    module = plugin()
    module.mappa_recipes = hookimpl(lambda: {"tiny": tmp_path / "base.yaml"})
    registry = load_plugins(only=[], modules={"guided": module})

    def run(*settings: str) -> RunReader:
        composed = compose(registry, "guided", overrides=(f"run.root={json.dumps(str(tmp_path))}", *settings))
        return RunReader(asyncio.run(evaluate_standalone(composed, registry)).folder)

    return run


def test_a_setting_replaces_the_prompt_and_the_run_records_it(evaluated):
    with evaluated("agents.first.prompt=Start.") as run:
        steps = [row.step for row in run.steps]
        assert steps[0].messages[0].content == "Start. 2+2"
        assert run.prompts == {"first": {steps[0].prompt: "Start."}}


def test_the_original_text_as_a_setting_changes_nothing(evaluated):
    with evaluated() as plain, evaluated("agents.first.prompt=Begin.") as same:
        assert [row.step.messages for row in plain.steps] == [row.step.messages for row in same.steps]
        assert plain.prompts == same.prompts == {"first": {version("Begin."): "Begin."}}


def test_a_prompt_that_the_workflow_does_not_name_is_refused(evaluated):
    said = r"agents\.second\.prompt: the workflow guided names no prompt of it .*: first"
    with pytest.raises(ConfigError, match=said):
        evaluated("agents.second.prompt=End.")
