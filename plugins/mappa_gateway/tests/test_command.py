"""`mappa gateway`: an agent of one's own, tried with one file and no plugin of one's own."""

from __future__ import annotations

import json
import sys

import pytest

from mappa.cli import main

SCRIPTED = """
from mappa.testing import FixedCoach, ScriptedEngine
from mappa_core import Coach

class Broken(Coach):
    async def score(self, scene):
        raise RuntimeError("no rubric for " + scene.step.agent)

@hookimpl
def mappa_engines():
    yield Offer("scripted", lambda options: ScriptedEngine(lambda prompt, sampling: "4"))

@hookimpl
def mappa_coaches():
    yield Offer("fixed", lambda options: FixedCoach(5.0))
    yield Offer("broken", lambda options: Broken())
"""
AGENT = """
import openai

def solve(session):
    client = openai.OpenAI(base_url=session.base_url, api_key=session.api_key)
    messages = [{"role": "user", "content": session.task.prompt}]
    return client.chat.completions.create(model="gpt-4o", messages=messages).choices[0].message.content
"""
CONFIG = """
tasks: {options: {path: tasks.jsonl}}
workflow: {options: {function: "own_agent:solve", agents: {solver: {brief: Answers.}}}}
policies: {default: {model: none}}
coach: {use: fixed}
engine: {use: scripted}
"""


@pytest.fixture
def folder(site, tmp_path, monkeypatch):
    site.write("scripted", SCRIPTED)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "own_agent", raising=False)
    (tmp_path / "own_agent.py").write_text(AGENT)
    tasks = [{"prompt": "2+2?", "answer": "4"}, {"prompt": "2+3?", "answer": "5"}]
    (tmp_path / "tasks.jsonl").write_text("\n".join(json.dumps(task) for task in tasks))
    (tmp_path / "own.yaml").write_text(CONFIG)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


def test_gateway_command_prints_turns_outcome_and_answered_share(folder, capsys):
    assert main(["gateway", "--config", "own.yaml", "--tasks", "2"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("solver, turn 1") == 2
    assert "2+3?" in shown and "correct 50.0 %" in shown and "answered 100.0 %" in shown
    assert len(list((folder / "runs").iterdir())) == 1


def test_gateway_command_plays_with_the_coach_by_one_flag(folder, capsys):
    assert main(["gateway", "--config", "own.yaml", "--tasks", "2"]) == 0
    assert "the coach was not asked: --coach asks it" in capsys.readouterr().out
    assert main(["gateway", "--config", "own.yaml", "--tasks", "2", "--coach"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("fixed: 5 of 10") == 2 and "2 verdicts: 2 scored, 0 abstained, 0 failed" in shown


def test_errors_of_a_coach_show_before_training(folder, capsys):
    assert main(["gateway", "--config", "own.yaml", "--coach", "coach.use=broken"]) == 3
    captured = capsys.readouterr()
    assert "1 verdicts: 0 scored, 0 abstained, 1 failed" in captured.out
    assert "no rubric for solver" in captured.out
    assert "all 1 verdicts failed" in " ".join(captured.err.split())


def test_gateway_command_refuses_a_workflow_without_gateway(folder, capsys):
    assert main(["gateway", "--plugin", "mathchat"]) == 2
    assert "add workflow.use=gateway" in " ".join(capsys.readouterr().err.split())


def test_missing_settings_are_named(folder, capsys):
    assert main(["gateway"]) == 2
    assert "coach.use: no value" in capsys.readouterr().err
    assert main(["gateway", "--config", "own.yaml", "workflow.options.function=null"]) == 2
    assert "give one of function (module:function) and command" in " ".join(capsys.readouterr().err.split())
