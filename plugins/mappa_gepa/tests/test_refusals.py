"""What a proposed prompt may not hold."""

import pytest

from mappa_core import Task
from mappa_gepa.refusals import LeakCheck, refuse

TASKS = [
    Task(id="long", prompt="Name the four colours of the flag", reference="red green blue and yellow"),
    Task(id="short", prompt="How many apples are left in the basket", reference="7"),
    Task(id="year", prompt="When was it built", reference="1729"),
    Task(id="none", prompt="Anything"),
]
ORIGINAL = "You compute. Think in steps about {{ problem }}."
LEAKS = LeakCheck(TASKS, [ORIGINAL])


@pytest.mark.parametrize(
    ("text", "task"),
    [
        ("Answer RED, green, blue and… whatever", "long"),
        ("Mind the colours red and green.", None),
        ("If apples are left in a basket, how many? Write 7.", "short"),
        ("Work in 7 steps.", None),
        ("The year is 1729.", "year"),
        ("The year is 17290.", None),
        ("Apples are left in piles.\nUse 7 steps.", None),
    ],
)
def test_an_answer_is_found_by_its_words_or_beside_words_of_its_task(text, task):
    found = LEAKS.find(text)
    assert (found.id if found else None) == task


def test_text_of_the_original_prompts_is_no_leak():
    assert LeakCheck(TASKS, ["Built in 1729."]).find("It was built in 1729, mind.") is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (f"  {ORIGINAL} ", "unchanged"),
        ("You compute. Think in steps.", "tags"),
        ("You compute. Think in steps about {{ problem }} and {{ problem.reference }}.", "tags"),
        (f"{ORIGINAL} The year is 1729.", "leak"),
        (f"{ORIGINAL} Think in steps about {{{{ problem }}}}. ".replace("{{ problem }}. T", "it. T"), None),
        (f"{ORIGINAL}\nYou compute.", "longer"),
        (f"{ORIGINAL} {'Check every result once more. ' * 100}", "longer"),
        (f"{ORIGINAL} Check every result.", None),
        ("You compute with care about {{ problem }}.", None),
    ],
)
def test_refusals(text, why):
    assert refuse(text, ORIGINAL, ORIGINAL, LEAKS, max_growth=4.0) == why
