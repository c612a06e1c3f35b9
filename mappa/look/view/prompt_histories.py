"""Prompts of a run: the text of each agent, and after which iterations of a training it changed."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from mappa.runs import RunReader
from mappa.store.writer import PROMPT_ROUND_EVENT


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptChange:
    """A prompt that a training changed after `iteration` iterations, and the lines that differ from the one before."""

    iteration: int
    diff: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptHistory:
    """Prompt of an agent: the text in use, the lines that differ from the first one, and the changes of a training."""

    agent: str
    versions: int
    text: str
    diff: tuple[str, ...]
    changes: tuple[PromptChange, ...]


def build_prompt_histories(reader: RunReader) -> list[PromptHistory]:
    """Build the history of each agent's prompt. The text in use is that of the last round of a training or, where there
    is none, the last that the run recorded."""
    uses: dict[str, list[str]] = {}
    for event in reader.events("prompt"):
        uses.setdefault(event.body["agent"], []).append(event.body["text"])
    rounds = {event.body["iteration"]: event.body["prompts"] for event in reader.events(PROMPT_ROUND_EVENT)}
    return [_history(agent, texts, rounds) for agent, texts in uses.items()]


def _history(agent: str, texts: list[str], rounds: Mapping[int, Mapping[str, str]]) -> PromptHistory:
    before, changes = texts[0], list[PromptChange]()
    for iteration, prompts in sorted(rounds.items()):
        if prompts[agent] != before:
            changes.append(PromptChange(iteration=iteration, diff=_diff(before, prompts[agent])))
        before = prompts[agent]
    last = before if rounds else texts[-1]
    return PromptHistory(
        agent=agent, versions=len(set(texts)), text=last, diff=_diff(texts[0], last), changes=tuple(changes)
    )


def _diff(first: str, last: str) -> tuple[str, ...]:
    lines = difflib.unified_diff(first.splitlines(), last.splitlines(), lineterm="", n=1)
    return tuple(lines)[2:]  # without the names of files
