"""Stories, the sums that solve them, and the examples that are made of them."""

import json
import re
from itertools import islice
from random import Random

import pytest
from click.testing import CliRunner

from mappa.testing import TaskSourceContract
from mappa_core import ConfigError
from mappa_mathchat.cli import command
from mappa_mathchat.plans import APPLY_OPERATION, Plan, PlanStep, parse_sums
from mappa_mathchat.stories import CHANGES, OPENINGS, QUESTIONS, Stories, generate_stories, parse_story
from mappa_mathchat.word_problems import WordOptions, generate_problems
from mappa_mathchat.workflow import CODER, SOLVER, VERIFIER, MathChat, MathChatOptions

STORIES = tuple(islice(generate_stories(Random(3)), 400))


class TestTasks(TaskSourceContract):
    def source(self):
        return Stories(WordOptions(train=40, eval=10))


def test_a_story_tells_the_numbers_of_its_plan_in_order():
    for story in STORIES:
        told = [int(number) for number in re.findall(r"\d+", story.text)]
        # Twice and half are told in a word.
        numbers = [story.plan.start, *(step.number for step in story.plan.steps)]
        remaining = iter(numbers)
        assert all(any(number == next_one for next_one in remaining) for number in told), story.text
        assert len(numbers) - len(told) == len(re.findall(r"twice|doubles|half", story.text))
        assert 1 <= story.plan.value <= 999 and "{" not in story.text


def test_there_are_many_ways_of_saying_it():
    assert len({re.sub(r"\d+|[A-Z][a-z]{2}\b", "", story.text) for story in STORIES}) > 350
    assert min(len(OPENINGS), *map(len, CHANGES.values()), len(QUESTIONS)) >= 4


def test_a_solution_is_a_chain_of_sums_that_ends_in_the_box():
    for story in STORIES:
        assert parse_sums(story.solution) == (story.plan, str(story.plan.value))
        total = story.plan.start
        for step in story.plan.steps:
            total = APPLY_OPERATION[step.operation](total, step.number)
        assert story.solution.endswith(f" \\boxed{{{total}}}")


@pytest.mark.parametrize("mix", ["all", "sum", "scale"])
@pytest.mark.parametrize("steps", [(1,), (2, 3), (4, 5, 6)])
def test_the_plan_of_a_story_is_read_from_its_text_alone(mix, steps):
    for story in islice(generate_stories(Random(f"{mix}/{steps}"), steps, mix), 500):
        assert parse_story(story.text) == story.plan, story.text


def test_nothing_is_read_from_half_a_story():
    for story in STORIES[:100]:
        sentences = re.split(r"(?<=\.) ", story.text)
        assert parse_story(" ".join(sentences[:-1])) is None
        assert parse_story(" ".join(sentences[1:])) is None
        assert parse_story(f"{sentences[0]} {sentences[-1]}") is None
        assert all(parse_story(story.text[:end]) is None for end in range(len(story.text)))
        assert parse_story(f"{story.text} {sentences[-1]}") is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Mia doubles", "Tom doubles"),
        ("to Tom", "to Mia"),
        ("of shells", "of coins"),
        ("Mia has", "Joe has"),
        ("38", "038"),
        ("38", "0"),
        ("38", "3.5"),
        ("38", "٣٨"),
        ("38", "1234567890"),
        ("Then Mia", "Then  Mia"),
        ("Then Mia", "Then\nMia"),
        ("Then Mia doubles", "Then Mia triples"),
        ("How many", "Hi! How many"),
        ("now?", "now?\n"),
        ("Mia gives 9 to Tom. ", "Mia gives 9 to Tom. " * 16),
    ],
)
def test_nothing_is_read_from_what_no_story_says(old, new):
    text = (
        "Mia has 38 shells. Mia gives 9 to Tom. Then Mia doubles the number of shells. How many shells are there now?"
    )
    assert parse_story(text) == Plan(38, (PlanStep("sub", 9), PlanStep("mul", 2)))
    assert parse_story(text.replace(old, new, 1)) is None


TWO_FRIENDS = "Mia has 38 shells. Mia gives 9 to Tom. Eva gives Mia another 2. How many shells are left?"
AIME_LIKE = "Let $x$ be 3. Find $x^2$. How many coins are left?"


@pytest.mark.parametrize("text", ["", "Find x.", "How many?", TWO_FRIENDS, AIME_LIKE])
def test_nothing_is_read_from_other_texts(text):
    assert parse_story(text) is None
    assert all(parse_story(problem.text) is None for problem in islice(generate_problems(Random(text)), 200))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5 + 2 = 8. 8 * 3 = 24.", (Plan(5, (PlanStep("add", 2), PlanStep("mul", 3))), "24")),
        ("First 5+2=7, then 3 × 7 = 21", (Plan(5, (PlanStep("add", 2), PlanStep("mul", 3))), "21")),
        ("5 + 2 = 7. 3 - 7 = 4.", None),
        ("5 + 2 = 7. 6 * 3 = 18.", None),
        ("5 / 0 = 5", None),
        ("1.5 + 2 = 3.5", None),
        ("Seven.", None),
        (" ".join(["1 + 1 = 1."] * 17), None),
    ],
)
def test_sums_are_read_where_each_goes_on_from_the_one_before(text, expected):
    assert parse_sums(text) == expected


def test_examples_are_what_the_agents_see_and_should_answer(tmp_path):
    done = CliRunner().invoke(command, ["examples", str(tmp_path / "new"), "--count", "3"])
    assert done.exit_code == 0, done.output
    card = json.loads((tmp_path / "new/dataset.json").read_text())
    assert set(card["files"]) == {SOLVER, CODER, VERIFIER}
    rows = {
        agent: [json.loads(line) for line in (tmp_path / "new" / entry["file"]).read_text().splitlines()]
        for agent, entry in card["files"].items()
    }
    assert {len(of) for of in rows.values()} == {3}
    first = {agent: (of[0]["prompt"][0]["content"], of[0]["completion"][0]["content"]) for agent, of in rows.items()}
    team = MathChat(MathChatOptions(prompts="smol"))
    story = first[SOLVER][0].partition("\n")[0]
    assert first[SOLVER][0] == team.build_prompt(SOLVER, story, [])
    value = first[SOLVER][1].partition("\\boxed{")[2].removesuffix("}")
    assert first[SOLVER][1] in first[CODER][0] and first[CODER][1].startswith("```python\n")
    assert f"output: {value}" in first[VERIFIER][0] and first[VERIFIER][1] == f"\\boxed{{{value}}}"
    assert story not in {task.prompt for task in Stories(WordOptions()).load("eval")}


def test_an_agent_may_get_fewer_examples_than_the_others(tmp_path):
    written = {}
    for name, words in (("all", ()), ("fewer", ("--agent", f"{CODER}=2", "--agent", f"{VERIFIER}=1"))):
        done = CliRunner().invoke(command, ["examples", str(tmp_path / name), "--count", "3", *words])
        assert done.exit_code == 0, done.output
        card = json.loads((tmp_path / name / "dataset.json").read_text())["files"]
        written[name] = {agent: (tmp_path / name / entry["file"]).read_text() for agent, entry in card.items()}
        assert {agent: entry["rows"] for agent, entry in card.items()} == {
            agent: text.count("\n") for agent, text in written[name].items()
        }
    assert f"3 for {SOLVER}, 2 for {CODER}, 1 for {VERIFIER}" in done.output
    assert all(written["all"][agent].startswith(text) for agent, text in written["fewer"].items())
    assert [text.count("\n") for text in written["fewer"].values()] == [3, 2, 1]


@pytest.mark.parametrize("word", ["code_executor=4", "code_executor=0", "code_executor", "critic=1", "=1"])
def test_fewer_examples_are_told_by_agent_and_number(tmp_path, word):
    done = CliRunner().invoke(command, ["examples", str(tmp_path / "new"), "--count", "3", "--agent", word])
    assert isinstance(done.exception, ConfigError) and f"--agent {word}: say AGENT=N" in str(done.exception)
    assert not (tmp_path / "new").exists()


def test_examples_never_overwrite_anything(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    done = CliRunner().invoke(command, ["examples", str(tmp_path)])
    assert isinstance(done.exception, ConfigError) and "is not empty" in str(done.exception)
