"""Keys in what an agent's program says at its end and asks in between: they are in nothing that is recorded."""

from __future__ import annotations

import os
import sys
from urllib.parse import quote

import openai
import pytest

from mappa_core import redaction
from mappa_core.codec import to_json

KEY = "sk-planted/7f3a91+Zq=="


@pytest.fixture(autouse=True)
def planted(monkeypatch):
    monkeypatch.setattr(redaction, "_masks", {})
    monkeypatch.setenv("PLANTED_API_KEY", KEY)
    redaction.keep_environment()


def ask(assignment, text, **fields):
    client = openai.OpenAI(base_url=assignment.base_url, api_key=assignment.api_key)
    return client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": text}, *fields.get("more", ())]
    )


def answers_with_its_key(assignment):
    ask(assignment, "?")
    return f"done, with {os.environ['PLANTED_API_KEY']}"


def raises_with_its_key(assignment):
    headers = {"authorization": f"Bearer {os.environ['PLANTED_API_KEY']}"}
    ask(assignment, "?")
    raise ConnectionError(f"401 for {headers}")


def ends_itself_with_its_key(assignment):
    ask(assignment, "?")
    sys.exit(f"no {os.environ['PLANTED_API_KEY']}")


def asks_with_its_key(assignment):
    arguments = f'{{"header": "{KEY}"}}'
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    ask(assignment, f"log in with {KEY}, or {quote(KEY, safe='')}", more=[{"role": "assistant", "tool_calls": [call]}])
    return "4"


PROGRAM = """
import json, os, sys, urllib.request
body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "?"}]}).encode()
headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
urllib.request.urlopen(request).read()
"""
PRINTS = PROGRAM + "print('done', os.environ)"
FAILS = PROGRAM + "sys.exit('no ' + os.environ['PLANTED_API_KEY'])"
FAILS_AT_LENGTH = PROGRAM + "sys.exit('x' * 990 + os.environ['PLANTED_API_KEY'] + 'x' * 1500)"


@pytest.mark.parametrize(
    "agent",
    [
        answers_with_its_key,
        raises_with_its_key,
        ends_itself_with_its_key,
        asks_with_its_key,
        PRINTS,
        FAILS,
        FAILS_AT_LENGTH,
    ],
)
async def test_a_key_that_an_agent_says_is_not_recorded(theatre, capfd, agent):
    is_program = isinstance(agent, str)
    workflow = theatre.workflow(command=[sys.executable, "-c", agent]) if is_program else theatre.workflow(agent)
    graded = []
    workflow.grade = lambda text, task: note(graded, text)
    trajectory = await theatre.one(workflow, lambda prompt, sampling: "4")
    captured = capfd.readouterr()
    recorded = (to_json(trajectory).decode(), repr(trajectory), repr(graded), captured.out, captured.err)
    assert len(trajectory.steps) == 1
    assert [text for text in recorded for form in (KEY, KEY[:12], quote(KEY, safe="")) if form in text] == []
    assert any("[PLANTED_API_KEY]" in text for text in recorded) or agent == FAILS_AT_LENGTH


async def note(graded, text):
    graded.append(text)
    return 0.0
