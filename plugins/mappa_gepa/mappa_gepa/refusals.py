"""Checks of a proposed prompt before anything is spent on it: it may hold no answer, and not merely get longer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Literal

from mappa_core import Task

Refusal = Literal["leak", "longer", "tags", "tried", "unchanged", "unreadable"]
"""Why a proposal is refused: it holds the answer of a task; it only got longer; it changes what the workflow fills in;
the candidate has been tried; it is the prompt that it was to replace; the reply holds no prompt."""

LEAK_WORDS = 4
"""Words of a reference that give it away where they stand together; shorter references need a telling task beside."""
TELLING_CHARACTERS = 4
"""Characters from which a reference of fewer words is recognised on its own."""
CONTEXT_WORDS = 3
"""Words of a task's prompt that, together in one line with a short reference, give it away."""
MIN_LENGTH = 500
"""Characters that the shortest prompt counts as where lengths are compared."""

_WORD = re.compile(r"\d+(?:\.\d+)?|\w+")
_TAG = re.compile(r"\{\{.*?\}\}|\{%.*?%\}|\{#.*?#\}", re.DOTALL)
_SENTENCE = re.compile(r"(?<=[.!?:;])\s+|\n+")

Words = tuple[str, ...]


class LeakCheck:
    """Finds references of tasks in prompts. What the original prompts hold already is no leak."""

    def __init__(self, tasks: Sequence[Task], originals: Sequence[str]) -> None:
        self._originals = [_words(text) for text in originals]
        self._references = [(task, _words(task.reference)) for task in tasks if task.reference is not None]

    def find(self, text: str) -> Task | None:
        """Return a task whose answer `text` holds, None if there is none."""
        words, lines = _words(text), [_words(line) for line in text.splitlines()]
        for task, reference in self._references:
            if any(_contains(words, part) and not self._is_original(part) for part in _telling_parts(reference)):
                return task
            if reference and any(_contains(line, reference) and _names_task(line, task, reference) for line in lines):
                return task
        return None

    def _is_original(self, part: Words) -> bool:
        return any(_contains(text, part) for text in self._originals)


def refuse(text: str, current: str, original: str, leaks: LeakCheck, *, max_growth: float) -> Refusal | None:
    """Return why `text` may not replace the prompt `current` of an agent whose first prompt is `original`, or None."""
    if text.split() == current.split():
        return "unchanged"
    if template_tags(text) != template_tags(original):
        return "tags"
    if leaks.find(text) is not None:
        return "leak"
    if len(text) > max_length(original, max_growth) or _only_repeats(text, current):
        return "longer"
    return None


def max_length(original: str, max_growth: float) -> int:
    """Maximum characters of a prompt whose first version is `original`."""
    return int(max_growth * max(len(original), MIN_LENGTH))


def template_tags(text: str) -> list[str]:
    """Expressions, statements and comments of a template, in order: what the workflow fills in."""
    return _TAG.findall(text)


def _only_repeats(text: str, current: str) -> bool:
    """Whether a longer text has no sentence that the current one lacks, and all of its sentences."""
    return len(text) > len(current) and set(_sentences(text)) == set(_sentences(current))


def _sentences(text: str) -> Iterator[Words]:
    return (words for part in _SENTENCE.split(text) if (words := _words(part)))


def _words(text: str) -> Words:
    return tuple(_WORD.findall(text.lower()))


def _telling_parts(reference: Words) -> Iterator[Words]:
    """Parts of a reference that give it away on their own: its n-grams, or a short reference that is long to write."""
    if len(reference) >= LEAK_WORDS:
        yield from (reference[start : start + LEAK_WORDS] for start in range(len(reference) - LEAK_WORDS + 1))
    elif len("".join(reference)) >= TELLING_CHARACTERS:
        yield reference


def _names_task(line: Words, task: Task, reference: Words) -> bool:
    """Whether a line with the reference also holds words that stand together in the task's prompt."""
    prompt = _words(task.prompt)
    size = min(CONTEXT_WORDS, len(prompt))
    parts = (prompt[start : start + size] for start in range(len(prompt) - size + 1))
    return size > 0 and any(part != reference and _contains(line, part) for part in parts)


def _contains(words: Words, part: Words) -> bool:
    return f" {' '.join(part)} " in f" {' '.join(words)} "
