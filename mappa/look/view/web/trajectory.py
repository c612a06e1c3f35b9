"""The page on one trajectory: a timeline of agents and turns, and prompts, replies, tool calls, verdicts and blame."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

from starlette.exceptions import HTTPException
from starlette.requests import Request

from mappa.cli.trajectory import label_headline
from mappa.look.shortlist import MAX_SUSPECTS, rank_suspects
from mappa.look.view.web.lineage import build_lineage_graph
from mappa.look.view.web.trajectories import find_neighbours, first_words, parse_filters
from mappa.runs import RunReader
from mappa_core import NOBODY, RunError, Step, ToolCall, ToolResult, Trajectory, Verdict
from mappa_core.records import Label
from mappa_core.tools.parse_calls import unanswered_calls, unquoted_arguments

_FENCE = re.compile(r"^```([^\n`]*)\n(.*?)(?:^```[ \t]*$|\Z)", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPart:
    """A part of an agent's text: prose, or the inside of a fenced block, labelled by its info string."""

    kind: Literal["prose", "code"]
    text: str
    label: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallWithResult:
    """A tool call and its result, each None if the record has none. `arguments` are those that no fenced block of the
    agent's text holds."""

    call: ToolCall | None
    arguments: Mapping[str, Any]
    result: ToolResult | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionView:
    """A step for display. `colour` is the number of its agent; `score` is that of the last verdict that has one;
    `labels` are headlines of what people say of it, each with their reason."""

    step: Step
    colour: int
    parts: tuple[TextPart, ...]
    calls: tuple[CallWithResult, ...]
    verdicts: tuple[Verdict, ...]
    score: float | None
    tokens: int | None
    blamed: tuple[str, ...]
    labels: tuple[tuple[str, str], ...]
    hand_off: bool


def build_trajectory_page(reader: RunReader, folder: Path, request: Request) -> dict[str, Any]:
    identity, filters = request.query_params.get("id"), parse_filters(request)
    if identity is None:
        raise HTTPException(400, "id is missing: which trajectory?")
    with _missing_is_404("trajectory", identity):
        number = reader.number(identity)
    found = reader.trajectory(identity)
    colours = {agent: place for place, agent in enumerate(dict.fromkeys(step.agent for step in found.steps))}
    verdicts: dict[str, list[Verdict]] = {}
    for verdict in found.verdicts:
        verdicts.setdefault(verdict.step, []).append(verdict)
    labels = reader.labels(identity)
    actions = [
        _build_action(step, colours[step.agent], verdicts.get(step.id, []), _headlines(labels, step.id), previous)
        for previous, step in zip((None, *found.steps), found.steps, strict=False)
    ]
    newer, older = find_neighbours(reader, filters, number)
    return {
        "filters": filters,
        "found": found,
        "words": first_words(found.task.prompt) or found.task.id,
        "row": reader.row(identity),
        "actions": actions,
        "colours": colours,
        "graph": build_lineage_graph(found.steps),
        "suspects": _find_suspects(found),
        "blamed": Counter(name for action in actions for name in action.blamed).most_common(),
        "labels": _headlines(labels, None),
        "newer": newer,
        "older": older,
    }


def _find_suspects(found: Trajectory) -> list[tuple[Step, Verdict]]:
    """Where to look first, if a coach ranks the actions: those it suspects most, with what speaks for each."""
    steps = {step.id: step for step in found.steps}
    ranked = [verdict for verdict in rank_suspects(found) if verdict.suspicion is not None]
    return [(steps[verdict.step], verdict) for verdict in ranked[:MAX_SUSPECTS]]


def build_prompt(reader: RunReader, folder: Path, request: Request) -> dict[str, Any]:
    """Build the prompt of an action. It is loaded when unfolded, because it repeats all earlier messages."""
    identity = request.query_params.get("step", "")
    with _missing_is_404("action", identity):
        step = reader.step(identity)
    return {"messages": step.messages}


def trajectory_document(reader: RunReader, request: Request) -> dict[str, Any]:
    """The record of a trajectory, with all verdicts and labels, as `mappa runs trace --json` prints it."""
    identity = request.query_params.get("id", "")
    with _missing_is_404("trajectory", identity):
        found = reader.trajectory(identity)
    return {**{field.name: getattr(found, field.name) for field in fields(found)}, "labels": reader.labels(identity)}


def read_action(reader: RunReader, request: Request) -> Step:
    """The record of an action with its prompt, tokens and results."""
    identity = request.query_params.get("id", "")
    with _missing_is_404("action", identity):
        return reader.step(identity)


def split_fences(text: str) -> tuple[TextPart, ...]:
    """Split a text into prose and fenced blocks, in order; an unclosed block extends to the end."""
    found, at = [], 0
    for fence in _FENCE.finditer(text):
        found.append(TextPart(kind="prose", text=text[at : fence.start()].strip("\n")))
        found.append(TextPart(kind="code", text=fence[2].rstrip("\n"), label=fence[1].strip()))
        at = fence.end()
    found.append(TextPart(kind="prose", text=text[at:].strip("\n")))
    return tuple(piece for piece in found if piece.text)


@contextmanager
def _missing_is_404(what: str, identity: str) -> Iterator[None]:
    try:
        yield
    except RunError:
        raise HTTPException(404, f"There is no {what} {identity}.") from None


def _headlines(labels: Sequence[Label], step: str | None) -> tuple[tuple[str, str], ...]:
    """Headlines and reasons of the labels of a step; None: of the whole trajectory."""
    return tuple((label_headline(label), label.reason) for label in labels if label.step == step)


def _build_action(
    step: Step,
    colour: int,
    verdicts: Sequence[Verdict],
    labels: tuple[tuple[str, str], ...],
    previous: Step | None,
) -> ActionView:
    scores = [verdict.score for verdict in verdicts if verdict.score is not None]
    tokens = step.completion.tokens
    blamed = [verdict.blame for verdict in verdicts if verdict.blame is not None and verdict.blame != NOBODY]
    return ActionView(
        step=step,
        colour=colour,
        parts=split_fences(step.completion.text),
        calls=tuple(_pair_calls(step)),
        verdicts=tuple(verdicts),
        score=scores[-1] if scores else None,
        tokens=None if tokens is None else len(tokens),
        blamed=tuple(dict.fromkeys(blamed)),
        labels=labels,
        hand_off=previous is not None and previous.agent != step.agent,
    )


def _pair_calls(step: Step) -> list[CallWithResult]:
    """The calls of a step with their results, then those whose answer is not recorded."""
    text, unanswered = step.completion.text, unanswered_calls(step.reply, step.calls)
    return [
        CallWithResult(call=call, arguments={} if call is None else unquoted_arguments(call, text), result=result)
        for call, result in zip_longest(step.calls, step.results)
    ] + [CallWithResult(call=call, arguments=call.arguments, result=None) for call in unanswered]
