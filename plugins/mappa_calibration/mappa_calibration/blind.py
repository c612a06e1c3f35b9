"""Blind scenes: the same action, without the names and words that a coach may like."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from mappa_core import Breach, Inspection, Message, Role, Scene, Step, ToolCall, ToolResult
from mappa_core.workflow import BlindRole

HIDDEN = "[…]"
"""What stands in place of a hidden word."""


class Disguise:
    """Changes texts: agents' `names`, also as they are written in prose (`problem_solver`, `Problem Solver`), to
    others, and `words`, whatever their case, to `HIDDEN`."""

    def __init__(self, names: Mapping[str, str], words: Sequence[str]) -> None:
        self._names = names
        self._in_names = _replacer(names, ())
        self._in_texts = _replacer(names, words)

    def __call__(self, text: str) -> str:
        return self._in_texts(text)

    def name(self, agent: str) -> str:
        """The name of `agent`."""
        return self._names.get(agent, agent)

    def file(self, path: str) -> str:
        """A path without names. Words stay: two files that differ by them alone have to stay two."""
        return self._in_names(path)

    def tool(self, name: str) -> str:
        """The name of a tool without agents' names (`transfer_to_solver`), as one word."""
        said = name.replace("_", " ")
        return name if (hidden := self._in_names(said)) == said else hidden.replace(" ", "_")


@lru_cache(maxsize=64)
def _disguise(names: tuple[tuple[str, str], ...], words: tuple[str, ...]) -> Disguise:
    """One of the same names and words, by which a coach finds what it has rendered before."""
    return Disguise(dict(names), words)


def _replacer(names: Mapping[str, str], words: Sequence[str]) -> Callable[[str], str]:
    """Replaces all at once, long ones first, so that nothing is found in what took the place of something else."""
    found = [(r"[\s_-]+".join(map(re.escape, re.split(r"[\s_-]+", name))), new) for name, new in names.items()]
    found += [(re.escape(word), HIDDEN) for word in words]
    found.sort(key=lambda pair: len(pair[0]), reverse=True)
    choices = "|".join(f"({pattern})" for pattern, _ in found)
    compiled = re.compile(rf"(?<!\w)(?:{choices})(?!\w)", re.IGNORECASE)
    return lambda text: compiled.sub(lambda match: found[(match.lastindex or 0) - 1][1], text)


def blind(scene: Scene, words: Sequence[str]) -> Scene:
    """Return `scene` with every agent under a name without meaning, and with `words` hidden, whatever their case: in
    the task, its truth, roles, rubrics, messages, actions, tool calls and their output, and in what was found in files.
    Agents' names are hidden in the names of tools and files, too."""
    acted = (step.agent for step in (*scene.earlier, scene.step, *(scene.later or ())))
    agents = dict.fromkeys((*sorted(scene.team), *acted))
    names = tuple((agent, f"agent {chr(ord('A') + place)}") for place, agent in enumerate(agents))
    hide = _disguise(names, tuple(words))
    task, later = scene.task, scene.later
    return replace(
        scene,
        task=replace(
            task,
            prompt=hide(task.prompt),
            reference=None if task.reference is None else hide(task.reference),
            stratum="",
            files={hide.file(name): path for name, path in task.files.items()},
        ),
        role=_role(scene.step.agent, scene.role, hide),
        step=_step(scene.step, hide),
        team={hide.name(agent): _role(agent, role, hide) for agent, role in scene.team.items()},
        earlier=tuple(_step(step, hide) for step in scene.earlier),
        later=None if later is None else tuple(_step(step, hide) for step in later),
        truth=None if scene.truth is None else hide(scene.truth),
    )


def _role(agent: str, role: Role, hide: Disguise) -> BlindRole:
    return BlindRole(
        agent,
        hide,
        brief=hide(role.brief),
        needs=tuple(map(hide.file, role.needs)),
        produces=tuple(map(hide.file, role.produces)),
        rubric=None if role.rubric is None else _template(role.rubric, hide),
    )


def _template(source: str, hide: Disguise) -> str:
    """Change the text of a rubric, and not its code, which is run for the agent that it is of."""
    parts = re.split(r"(\{[{%#].*?[}%#]\})", source, flags=re.DOTALL)
    return "".join(part if place % 2 else hide(part) for place, part in enumerate(parts))


def _step(step: Step, hide: Disguise) -> Step:
    return replace(
        step,
        agent=hide.name(step.agent),
        policy=hide(step.policy),
        messages=tuple(_message(message, hide) for message in step.messages),
        reply=_message(step.reply, hide),
        completion=replace(step.completion, text=hide(step.completion.text)),
        tools=tuple(map(hide.tool, step.tools)),
        own_tools=tuple(
            replace(spec, name=hide.tool(spec.name), description=hide(spec.description)) for spec in step.own_tools
        ),
        files=tuple(map(hide.file, step.files)),
        calls=tuple(_call(call, hide) for call in step.calls),
        results=tuple(_result(result, hide) for result in step.results),
        breaches=tuple(_breach(breach, hide) for breach in step.breaches),
        inspection=None if step.inspection is None else _inspection(step.inspection, hide),
        strata={},
    )


def _call(call: ToolCall, hide: Disguise) -> ToolCall:
    error = None if call.error is None else hide(call.error)
    return replace(call, name=hide.tool(call.name), arguments=_texts(call.arguments, hide), error=error)


def _result(result: ToolResult, hide: Disguise) -> ToolResult:
    files = tuple(replace(change, path=hide.file(change.path)) for change in result.files)
    return replace(
        result, tool=hide.tool(result.tool), stdout=hide(result.stdout), stderr=hide(result.stderr), files=files
    )


def _breach(breach: Breach, hide: Disguise) -> Breach:
    return replace(
        breach,
        agent=hide.name(breach.agent),
        path=hide.file(breach.path),
        detail=hide(breach.detail),
        reason=hide(breach.reason),
    )


def _inspection(found: Inspection, hide: Disguise) -> Inspection:
    breaches = tuple(_breach(breach, hide) for breach in found.breaches)
    return replace(found, breaches=breaches, findings=tuple(map(hide, found.findings)))


def _message(message: Message, hide: Disguise) -> Message:
    return replace(
        message,
        content=hide(message.content),
        name=None if message.name is None else hide(message.name),
        reasoning=None if message.reasoning is None else hide(message.reasoning),
        tool_calls=tuple(_call(call, hide) for call in message.tool_calls),
    )


def _texts(value: Any, hide: Disguise) -> Any:
    if isinstance(value, str):
        return hide(value)
    if isinstance(value, dict):
        return {key: _texts(inside, hide) for key, inside in value.items()}
    if isinstance(value, list | tuple):
        return [_texts(inside, hide) for inside in value]
    return value
