"""Blind scenes: the same action, without the names and words that a coach may like."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from mappa_core import Message, Role, Scene, Step

HIDDEN = "[…]"
"""What stands in place of a hidden word."""


def blind(scene: Scene, words: Iterable[str]) -> Scene:
    """Return `scene` with every agent under a name without meaning, and with `words` hidden, whatever their case: in
    the task, roles, messages, actions, tool calls and their output."""
    names = {name: f"agent {chr(ord('A') + place)}" for place, name in enumerate(sorted(scene.team))}
    change = _replacer(names, words)
    agents = {name: _role(role, change) for name, role in scene.team.items()}
    return replace(
        scene,
        task=replace(scene.task, prompt=change(scene.task.prompt), stratum=""),
        role=_role(scene.role, change),
        step=_step(scene.step, names, change),
        team={names[name]: role for name, role in agents.items()},
        earlier=tuple(_step(step, names, change) for step in scene.earlier),
        later=None if scene.later is None else tuple(_step(step, names, change) for step in scene.later),
        truth=None if scene.truth is None else change(scene.truth),
    )


def _replacer(names: dict[str, str], words: Iterable[str]) -> Callable[[str], str]:
    """Replaces names, also as they are written in prose (`problem_solver`, `Problem Solver`), and hides words."""
    patterns = [(r"[\s_-]+".join(map(re.escape, re.split(r"[\s_-]+", name))), new) for name, new in names.items()]
    patterns += [(re.escape(word), HIDDEN) for word in words]
    compiled = [(re.compile(rf"(?<!\w){pattern}(?!\w)", re.IGNORECASE), new) for pattern, new in patterns]

    def change(text: str) -> str:
        for pattern, new in compiled:
            text = pattern.sub(new, text)
        return text

    return change


def _role(role: Role, change: Callable[[str], str]) -> Role:
    return replace(role, brief=change(role.brief))


def _step(step: Step, names: dict[str, str], change: Callable[[str], str]) -> Step:
    results = (replace(one, stdout=change(one.stdout), stderr=change(one.stderr)) for one in step.results)
    return replace(
        step,
        agent=names.get(step.agent, step.agent),
        messages=tuple(_message(one, change) for one in step.messages),
        reply=_message(step.reply, change),
        completion=replace(step.completion, text=change(step.completion.text)),
        calls=tuple(replace(call, arguments=_texts(call.arguments, change)) for call in step.calls),
        results=tuple(results),
        strata={},
    )


def _message(message: Message, change: Callable[[str], str]) -> Message:
    reasoning = None if message.reasoning is None else change(message.reasoning)
    calls = tuple(replace(call, arguments=_texts(call.arguments, change)) for call in message.tool_calls)
    return replace(message, content=change(message.content), reasoning=reasoning, tool_calls=calls)


def _texts(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {key: _texts(one, change) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_texts(one, change) for one in value]
    return value
