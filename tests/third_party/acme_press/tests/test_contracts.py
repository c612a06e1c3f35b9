"""The offers of the package pass Mappa's contract tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from acme_press import wire
from acme_press.credit import Brief, BriefOptions
from acme_press.diary import Diary, DiaryOptions
from acme_press.glossary import Glossary
from acme_press.team import Press, Words, WordsOptions

from mappa.testing import (
    PackageContract,
    ShaperContract,
    TaskSourceContract,
    ToolContract,
    TrackerContract,
    TransportContract,
    WorkflowContract,
    json_answer,
    play,
)
from mappa_core import NoOptions, Task, Tool
from mappa_core.transport import Transport

CALL = '<tool_call>{"name": "glossary", "arguments": {"word": "tide"}}</tool_call>'
SEA = "the sea that comes and goes"
TASK = Task(id="1", prompt="tide", reference=SEA, meta={"words": ["lemma", "tide"]})


class TestPackage(PackageContract):
    plugin = "press"


class TestWords(TaskSourceContract):
    def source(self) -> Words:
        return Words(WordsOptions())


class TestPress(WorkflowContract):
    task = TASK
    replies = (CALL, SEA)

    def workflow(self) -> Press:
        return Press(NoOptions())

    def tools(self) -> Mapping[str, Tool]:
        return {"glossary": Glossary(NoOptions())}


class TestGlossary(ToolContract):
    arguments: Mapping[str, Any] = {"word": "tide"}
    nonsense = ({"word": ""}, {"word": "Tide"}, {"word": "\x00"})

    def tool(self) -> Tool:
        return Glossary(NoOptions())


class TestWire(TransportContract):
    variable = "ACME_PRESS_KEY"
    answer = json_answer({"words": "Fine.", "enough": True})

    def transport(self, url: str) -> Transport:
        return wire.build(wire.Options(model="strict-1", address=url))


class TestBrief(ShaperContract):
    def shaper(self) -> Brief:
        return Brief(BriefOptions())

    def test_a_character_too_many_has_its_price(self) -> None:
        finished = self.trajectories()[0]  # every action says four characters
        assert Brief(BriefOptions(free=2, price=0.25))(finished, (1.0, None, 0.5, 0.0)) == (0.5, None, 0.0, -0.5)


class TestDiary(TrackerContract):
    def tracker(self) -> Diary:
        return Diary(DiaryOptions())


@pytest.mark.parametrize(
    ("replies", "printed", "looked_up"),
    [((CALL, SEA), 1.0, 1.0), (("no call", SEA), 1.0, 0.0), ((CALL, "nothing was found"), 0.0, 1.0)],
)
async def test_what_is_printed_counts(replies: tuple[str, str], printed: float, looked_up: float) -> None:
    played = await play(Press(NoOptions()), TASK, replies, tools={"glossary": Glossary(NoOptions())})
    assert played.outcome == {"printed": printed, "looked_up": looked_up}
