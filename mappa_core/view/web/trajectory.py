"""One trajectory: the timeline of agents and turns, and all that was seen, thought, written, run, judged and blamed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

from starlette.exceptions import HTTPException
from starlette.requests import Request

from mappa_core.errors import RunError
from mappa_core.records import NOBODY, Step, ToolCall, ToolResult, Verdict
from mappa_core.store.reader import Reader
from mappa_core.view.web.lineage import lineage
from mappa_core.view.web.trajectories import asked_of, neighbours

_FENCE = re.compile(r"^```([^\n`]*)\n(.*?)(?:^```[ \t]*$|\Z)", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A part of what an agent wrote: prose, or the inside of a fenced block with what stands behind its fence."""

    kind: Literal["prose", "code"]
    text: str
    label: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A call and its result, each None where the record has none. `arguments` are those that do not stand in what the
    agent wrote, as the inside of a fenced block does."""

    call: ToolCall | None
    arguments: Mapping[str, Any]
    result: ToolResult | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """A step as it is shown. `colour` is a number for its agent; `score` is of the last verdict that has one."""

    step: Step
    colour: int
    pieces: tuple[Piece, ...]
    answered: tuple[Answered, ...]
    verdicts: tuple[Verdict, ...]
    score: float | None
    tokens: int | None
    blamed: tuple[str, ...]
    hand_off: bool


def page(reader: Reader, folder: Path, request: Request) -> dict[str, Any]:
    identity, asked = request.query_params.get("id"), asked_of(request)
    if identity is None:
        raise HTTPException(400, "id is missing: which trajectory?")
    try:
        number = reader.number(identity)
    except RunError:
        raise HTTPException(404, f"There is no trajectory {identity}.") from None
    found = reader.trajectory(identity)
    colours = {agent: place for place, agent in enumerate(dict.fromkeys(step.agent for step in found.steps))}
    verdicts: dict[str, list[Verdict]] = {}
    for verdict in found.verdicts:
        verdicts.setdefault(verdict.step, []).append(verdict)
    actions = [
        _action(step, colours[step.agent], verdicts.get(step.id, []), previous)
        for previous, step in zip((None, *found.steps), found.steps, strict=False)
    ]
    newer, older = neighbours(reader, asked, number)
    return {
        "asked": asked,
        "found": found,
        "row": reader.row(identity),
        "actions": actions,
        "colours": colours,
        "graph": lineage(found.steps),
        "blamed": Counter(name for action in actions for name in action.blamed).most_common(),
        "newer": newer,
        "older": older,
    }


def prompt(reader: Reader, folder: Path, request: Request) -> dict[str, Any]:
    """What an action saw, asked for when it is unfolded: it repeats all that was said before."""
    try:
        step = reader.step(request.query_params.get("step", ""))
    except RunError as error:
        raise HTTPException(404, str(error)) from None
    return {"messages": step.messages}


def pieces(text: str) -> tuple[Piece, ...]:
    """Prose and fenced blocks in their order; an unclosed block goes to the end."""
    found, at = [], 0
    for fence in _FENCE.finditer(text):
        found.append(Piece(kind="prose", text=text[at : fence.start()].strip("\n")))
        found.append(Piece(kind="code", text=fence[2].rstrip("\n"), label=fence[1].strip()))
        at = fence.end()
    found.append(Piece(kind="prose", text=text[at:].strip("\n")))
    return tuple(piece for piece in found if piece.text)


def _action(step: Step, colour: int, verdicts: Sequence[Verdict], previous: Step | None) -> Action:
    scores = [verdict.score for verdict in verdicts if verdict.score is not None]
    tokens = step.completion.tokens
    blamed = [verdict.blame for verdict in verdicts if verdict.blame is not None and verdict.blame != NOBODY]
    return Action(
        step=step,
        colour=colour,
        pieces=pieces(step.completion.text),
        answered=tuple(_answered(step)),
        verdicts=tuple(verdicts),
        score=scores[-1] if scores else None,
        tokens=None if tokens is None else len(tokens),
        blamed=tuple(dict.fromkeys(blamed)),
        hand_off=previous is not None and previous.agent != step.agent,
    )


def _answered(step: Step) -> list[Answered]:
    return [
        Answered(call=call, arguments={} if call is None else _unsaid(call, step.completion.text), result=result)
        for call, result in zip_longest(step.calls, step.results)
    ]


def _unsaid(call: ToolCall, text: str) -> dict[str, Any]:
    said = (isinstance(value, str) and value.strip() in text for value in call.arguments.values())
    return {name: value for (name, value), known in zip(call.arguments.items(), said, strict=True) if not known}
