"""Faults: what each makes of a text, and where it leaves it alone."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from random import Random

import pytest

from mappa.look.crash_test import faults
from mappa.look.crash_test.faults import FAULTS, PlantSite, load_faults, plant_fault
from mappa_core import Completion, Message, PluginError, Step, Task, Trajectory

PROGRAM = "Here:\n```python\nx = f(a, b)\nx.to_csv('out')\n```"


def make_step(text: str, seen: str = "") -> Step:
    completion = Completion(text=text, prompt_tokens=None, tokens=None, logprobs=None, finish="stop")
    return Step(
        id="t/000", agent="a", turn=0, position=0, policy="a", messages=(Message(role="user", content=seen),),
        reply=Message(role="assistant", content=text), completion=completion,
    )  # fmt: skip


def plant(name: str, text: str, *, seen: str = "", elsewhere: tuple[str, ...] = ()) -> str | None:
    one = make_step(text, seen)
    site = PlantSite(
        step=one,
        trajectory=Trajectory(id="t", task=Task(id="t", prompt=seen), sample=0, iteration=0, steps=(one,)),
        elsewhere=[make_step(other) for other in elsewhere],
        random=Random(0),
    )
    return plant_fault(next(fault for fault in FAULTS if fault.name == name), site)


@pytest.mark.parametrize(
    "name, text, faulty",
    [
        ("wrong operator", "so 3 + 4", "so 3 - 4"),
        ("wrong operator", "a / b", "a * b"),
        ("swapped argument", "f(a, b)", "f(b, a)"),
        ("swapped argument", "5 - 3", "3 - 5"),
        ("swapped argument", "old shoe here", "shoe old here"),
        ("swapped argument", "jam", None),
        ("renamed column", "x['age']", "x['age_1']"),
        ("renamed column", "jam", "jam_1"),
        ("renamed column", "42", None),
        ("dropped file", PROGRAM, "Here:\n```python\nx = f(a, b)\npass\n```"),
        ("dropped file", "nothing is written", None),
        ("truncated output", "abcd", "ab"),
        ("truncated output", "a", None),
        ("broken code", PROGRAM, "Here:\n```python\nx = f(a, b)\nx.to_csv('out'\n```"),
        ("broken code", "abc", "cba"),
        ("broken code", "aba", None),
        ("leaked fence", PROGRAM, PROGRAM.removesuffix("\n```")),
        ("leaked fence", "jam", "```\njam"),
        ("silent no-op", PROGRAM, "Here:\n```python\npass\n```"),
        ("silent no-op", "jam", ""),
        ("silent no-op", "", None),
        ("negated claim", "jam", "not jam"),
        ("negated claim", "two\nlines", None),
    ],
)
def test_faults_change_the_text_as_described(name, text, faulty):
    assert plant(name, text) == faulty


def test_a_wrong_number_is_another_one_and_the_rest_stays():
    before, number, after = str(plant("wrong number", "in 17 days")).split()
    assert (before, after) == ("in", "days")
    assert 17 < int(number) <= 26
    assert plant("wrong number", "x1 and 2.5b") is None


def test_another_choice_is_one_of_those_shown():
    assert plant("wrong choice", "jam", seen="Which?\n- jam\n- rope") == "rope"
    assert plant("wrong choice", "sky", seen="Which?\n- jam\n- rope") is None
    assert plant("wrong choice", "jam", seen="Which?\n- jam") is None


def test_a_stale_answer_was_given_on_another_task():
    assert plant("stale answer", "jam", elsewhere=("jam", "rope")) == "rope"
    assert plant("stale answer", "jam", elsewhere=("jam",)) is None


def test_an_echo_repeats_the_first_line_shown():
    assert plant("echoed input", "jam", seen="\n Which?\n- jam") == "Which?"
    assert plant("echoed input", "Which?", seen="Which?") is None


def test_there_are_more_than_ten_kinds_and_each_has_a_name_of_its_own():
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 10


def offer(monkeypatch, value, name="own"):
    entry = EntryPoint(name, value, faults.FAULT_GROUP)
    monkeypatch.setattr(faults, "entry_points", lambda group: [entry] if group == faults.FAULT_GROUP else [])


def test_packages_add_faults_of_their_own(monkeypatch, site):
    site.write("own_faults", "from mappa.look.crash_test.faults import Fault\nOWN = Fault('own', lambda site: '!')\n")
    offer(monkeypatch, "written_own_faults:OWN")
    assert [fault.name for fault in load_faults()] == [*(fault.name for fault in FAULTS), "own"]


@pytest.mark.parametrize(
    "source, message",
    [
        ("OWN = 3", "names no Fault"),
        ("1 / 0", "cannot be loaded"),
        (
            "from mappa.look.crash_test.faults import Fault\nOWN = Fault('wrong number', str)",
            "two packages offer the fault",
        ),
    ],
)
def test_a_fault_that_cannot_be_used_is_an_error(monkeypatch, site, source, message):
    site.write("own_faults", source + "\n")
    offer(monkeypatch, "written_own_faults:OWN")
    with pytest.raises(PluginError, match=message):
        load_faults()
