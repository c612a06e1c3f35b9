"""What anything is called is data: nothing of a name stands outside of fences and quotation marks."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import fields, is_dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mappa_calibration.blind import blind
from mappa_core import CoachError, Role, ToolResult
from mappa_core.coaching.data_fences import quote_name
from mappa_core.coaching.llm_coach import LLMCoach
from mappa_core.coaching.options import LLMCoachOptions
from mappa_core.coaching.prompt import PromptBuilder
from mappa_core.coaching.reply_parser import BadReply, ReplySchema
from mappa_core.config.agent_names import describe_name_fault
from mappa_gepa.feedback import ActionFeedback
from mappa_gepa.options import ImproveOptions
from mappa_gepa.proposer import Proposer

from ..hostile_names import two_hundred

PLAIN = "plain_7x"
RENAMED = ("modeler", "code_executor", "X_train.pkl", "python", "correct")
JSON_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')


def renamed(value: Any, name: str) -> Any:
    """`value` with `name` in place of the agents, files, tools and measures of RENAMED."""
    if isinstance(value, str):
        return name if value in RENAMED else value
    if isinstance(value, tuple):
        return tuple(renamed(one, name) for one in value)
    if isinstance(value, dict):
        return {renamed(key, name): renamed(one, name) for key, one in value.items()}
    if is_dataclass(value):
        return replace(value, **{one.name: renamed(getattr(value, one.name), name) for one in fields(value)})
    return value


def bare(text: str) -> str:
    """`text` without what stands in fences and quotation marks, and without the plain name."""
    text = re.sub(r"(?ms)^<<<DATA \w+>>>\n(?:\| [^\n]*\n)*<<<END \w+>>>$", "", text)
    # A blind coach is shown letters, by the alphabet of the names.
    return re.sub("agent[ _][A-Z]", "NAME", JSON_STRING.sub("NAME", text).replace(PLAIN, "NAME"))


BUILDER = PromptBuilder(LLMCoachOptions(correction=True), new_nonce=lambda: "0123456789abcdef")


def messages(scenes: list[Any], *, blinded: bool) -> list[str]:
    builder, told = BUILDER, list[str]()
    # Of one blinded, a name of a single sign is replaced wherever this sign stands.
    for scene in (scenes[-1], *((blind(scenes[-1], ()),) if blinded else ())):
        prompt = asyncio.run(builder.build(scene))
        told += [message.content for message in builder.build_repair(prompt, "{}", "no JSON").messages]
    return told + [message.content for message in asyncio.run(builder.build_for_trajectory(scenes)).messages]


@pytest.fixture
def teams(mathchat, pipeline):
    step = replace(mathchat.step, results=(ToolResult(tool="python", status="error", exit_code=1, stderr="no"),))
    return [[replace(mathchat, step=step)], list(pipeline(outcome={"correct": 1.0}))]


def check(teams: list[Any], name: str, *, blinded: bool = True) -> None:
    for scenes in teams:
        hostile, plain = (
            messages([renamed(scene, word) for scene in scenes], blinded=blinded) for word in (name, PLAIN)
        )
        for one, other in zip(hostile, plain, strict=True):
            assert bare(one) == bare(other), ascii(name)


@pytest.mark.slow
def test_nothing_of_two_hundred_names_stands_bare_before_a_coach(teams):
    names = two_hundred()
    assert len(set(names)) == 200 and not [name for name in names if quote_name(name) == name]
    for name in names:
        check(teams, name)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=300).filter(lambda name: quote_name(name) != name))
def test_nothing_of_any_name_stands_bare_before_a_coach(teams, name):
    check(teams, name, blinded=False)


@pytest.mark.parametrize("name", ["Data Engineer", "planner-2", "研究员"])
def test_an_ordinary_name_reads_as_it_is(teams, name):
    scene = renamed(teams[1][-1], name)
    system, user = (one.content for one in asyncio.run(PromptBuilder(LLMCoachOptions()).build(scene)).messages)
    assert f"- **{name}**: Trains a model." in system
    assert f"## {name} (turn 1)" in user


def test_a_proposer_of_prompts_is_shown_no_bare_name():
    def asked(name: str) -> str:
        told = ActionFeedback(input="x", action="y", results="", verdict="z")
        options = ImproveOptions(proposer="p")
        self = SimpleNamespace(_originals={name: "Plan."}, _roles={name: Role(brief="plans")}, _options=options)
        return bare(Proposer._question(self, name, "Plan.", [told]))

    for name in two_hundred():
        assert asked(name) == asked(PLAIN), ascii(name)


# Verdicts


@pytest.mark.parametrize("name", [name for name in two_hundred() if len(name) <= 200], ids=ascii)
def test_the_quoted_name_in_a_reply_is_exactly_the_agent(name):
    form = ReplySchema(agents=(name, "planner"))
    quoted = quote_name(name, always=True)
    (verdict,) = form.parse(f'{{"reasoning": "r", "blame": {quoted}, "score": 1}}')
    assert verdict.blame == name
    assert name in form.json_schema["properties"]["blame"]["anyOf"][0]["enum"]
    with pytest.raises(BadReply):
        form.parse(json.dumps({"reasoning": "r", "blame": f"{name}?", "score": 1}))


WORDS = [
    "nobody",
    "Nobody",
    " NOBODY ",
    "ｎｏｂｏｄｙ",
    "no\u200bbody",
    "user",
    "Environment",
    "tool",
    "TASK",
    "none",
    "null",
]


@pytest.mark.parametrize("name", WORDS)
def test_no_agent_bears_a_word_of_verdicts(name):
    assert "which is a word of verdicts" in describe_name_fault(["planner", name])


@pytest.mark.parametrize("name", ["", " ", "\n", "\u200b", "_", " - ", "\u3164"])
def test_no_agent_goes_without_a_name(name):
    assert "has no name that could be read" in describe_name_fault([name])


@pytest.mark.parametrize("other", ["Planner", "planner ", "ｐｌａｎｎｅｒ", "plan\u200bner", "\u202eplanner"])
def test_no_two_agents_have_names_that_look_alike(other):
    assert "apart in a verdict" in describe_name_fault(["planner", "coder", other])


def test_ordinary_teams_have_no_fault():
    assert (
        describe_name_fault(["planner", "planner-2", "Data Engineer", "assistant", "研究员", "usher", "nobody_2"])
        is None
    )
    assert describe_name_fault(["planner", "planner"]) is None
    assert "has 201 characters" in describe_name_fault(["a" * 201])


def test_a_stored_action_of_nobody_is_not_judged(mathchat):
    scene = replace(mathchat, step=replace(mathchat.step, agent="nobody"))
    with pytest.raises(CoachError, match="'nobody', which is a word of verdicts"):
        LLMCoach._schema_for(SimpleNamespace(_options=LLMCoachOptions()), scene)
