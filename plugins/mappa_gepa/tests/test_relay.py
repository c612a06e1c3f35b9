"""The team without a model: contracts, and what its agents, its coach and its editor do."""

import pytest

from mappa.testing import PackageContract, TaskSourceContract, WorkflowContract, play
from mappa_core import Message, Task
from mappa_core.transport import Request
from mappa_gepa.drawn_tasks import DrawnTasksOptions
from mappa_gepa.proposer import find_prompt
from mappa_gepa.relay.coach import DutyCoach
from mappa_gepa.relay.instructions import INSTRUCTIONS, find_instructions, follow
from mappa_gepa.relay.models import FollowerOptions, InstructionFollower
from mappa_gepa.relay.team import DUTIES, Relay, RelayTasks

TASK = Task(id="t", prompt="fox maple elm maple birch heron amber linden", reference="AMBER-BIRCH-HERON-LINDEN")
REPLIES = ("maple birch heron amber linden", "amber birch heron linden", TASK.reference)


class TestPackage(PackageContract):
    plugin = "gepa"


class TestTasks(TaskSourceContract):
    def source(self):
        return RelayTasks(DrawnTasksOptions(train=20, eval=10))


class TestWorkflow(WorkflowContract):
    task = TASK
    replies = REPLIES

    def workflow(self):
        return Relay()


def test_instructions_are_followed_in_one_order_wherever_they_stand():
    text = "Put a hyphen between the words.\nThen: Sort the words\nby the alphabet."
    assert find_instructions(text) == ("Sort the words by the alphabet.", "Put a hyphen between the words.")
    assert follow(find_instructions(text), ["b", "a"]) == ["a-b"]


@pytest.mark.parametrize("instruction", INSTRUCTIONS)
def test_every_instruction_changes_some_task_and_no_words_are_words(instruction):
    tasks = RelayTasks(DrawnTasksOptions(train=20)).load("train")
    assert any(follow([instruction], task.prompt.split()) != task.prompt.split() for task in tasks)
    assert "".join(follow([instruction], [])) == ""


async def test_a_follower_does_what_its_prompt_says_and_slips_by_seed():
    message = Message(role="user", content="Write every word in capitals. Words: a b")
    exact, careless = (InstructionFollower(FollowerOptions(slip=slip)) for slip in (0.0, 0.5))
    assert (await exact.complete(Request(messages=(message,), seed=1))).text == "A B"
    texts = [(await careless.complete(Request(messages=(message,), seed=seed))).text for seed in range(40)]
    assert set(texts) == {"a b", "A B"}
    assert (await careless.complete(Request(messages=(message,), seed=3))).text == texts[3]


async def verdicts_of(*replies):
    trajectory = await play(Relay(), TASK, replies, coach=DutyCoach())
    return [(verdict.score, verdict.blame) for verdict in trajectory.verdicts], trajectory


async def test_coach_blames_the_first_agent_that_erred():
    assert (await verdicts_of(*REPLIES))[0] == [(10, "nobody")] * 3
    found, trajectory = await verdicts_of(REPLIES[0], "maple birch heron amber", "MAPLE-BIRCH-HERON-AMBER")
    assert found == [(10, "nobody"), (2, "sorter"), (10, "sorter")]
    assert trajectory.verdicts[1].reasoning == "It does not do what it should: “Sort the words by the alphabet.”"


async def test_coach_names_an_instruction_that_was_not_asked_for():
    _, trajectory = await verdicts_of(REPLIES[0], "maple linden heron birch", "MAPLE-LINDEN-HERON-BIRCH")
    assert trajectory.verdicts[1].reasoning == "It does what nobody asks of it: “Reverse the order of the words.”"


def test_the_original_prompts_hold_the_duties():
    assert {agent: find_instructions(text) for agent, text in Relay.prompts.items()} == DUTIES


@pytest.mark.parametrize(
    ("reply", "prompt"),
    [
        ("``````\nDo it.\n``````", "Do it."),
        ("Here:\n\n``````markdown\nDo\n\n```python\nx\n```\n``````\n", "Do\n\n```python\nx\n```"),
        ("Do it.", None),
        ("``````\n\n``````", None),
        ("``````\nHalf \ud83d of a character.\n``````", None),
        ("``````\nA\n``````\n``````\nB\n``````", None),
    ],
)
def test_a_reply_holds_one_prompt_or_none(reply, prompt):
    assert find_prompt(reply) == prompt
