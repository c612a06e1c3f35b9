"""Converts judged actions to examples in the forms that trainers read: supervised, preference pairs, single labels.

Columns are those of TRL's conversational data: lists of messages with `role` and `content`, and optionally
`reasoning_content` (think text), `tool_calls`, `name` and `tool_call_id`. A prompt holds the messages that the agent
saw, a completion its reply.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from mappa.look.dataset.select import JudgedAction, LeftOutCounts
from mappa_core import Message, ToolSpec
from mappa_core.engine import message_dict, tool_schema

DatasetForm = Literal["sft", "dpo", "kto"]
ExampleSource = Literal["actions", "corrections", "siblings"]
Example = dict[str, Any]
ExampleMaker = Callable[[Sequence[JudgedAction], LeftOutCounts], Iterator[tuple[str, Example]]]
"""Makes the examples, each with its agent, from the actions of one task in one iteration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptFormatter:
    """Formats prompts. Holds what agents see besides messages: the run's tools by name, and the arguments of each
    agent's chat template. A log that was imported names its tools alone."""

    tools: Mapping[str, ToolSpec]
    template_kwargs: Mapping[str, Mapping[str, Any]]

    def prompt(self, one: JudgedAction) -> Example:
        """The columns of an action's prompt. Tools are JSON text, the form that trainers read."""
        columns: Example = {"prompt": [message_dict(message) for message in one.step.messages]}
        known = (self.tools[name] for name in one.step.tools if name in self.tools)
        if specs := (*known, *one.step.own_tools):
            columns["tools"] = json.dumps([tool_schema(spec) for spec in specs])
        if kwargs := self.template_kwargs.get(one.step.agent):
            columns["chat_template_kwargs"] = dict(kwargs)
        return columns

    def unknown_tools(self, one: JudgedAction) -> Iterator[str]:
        """Names of an action's tools whose schema is not known, and which `tools` therefore leaves out."""
        return (name for name in one.step.tools if name not in self.tools)


class ActionExamples:
    """`sft`: the replies of agents, unchanged. Columns `prompt`, `completion`, `score`, `source` (the step's id)."""

    def __init__(self, formatter: PromptFormatter) -> None:
        self._formatter = formatter

    def __call__(self, group: Sequence[JudgedAction], left_out: LeftOutCounts) -> Iterator[tuple[str, Example]]:
        for one in group:
            yield one.step.agent, _single_example(self._formatter, one, _reply_messages(one))


class CorrectionExamples:
    """`sft`: the coach's corrections in place of the agents' replies. Columns as of `ActionExamples`; `score` is the
    action's."""

    def __init__(self, formatter: PromptFormatter) -> None:
        self._formatter = formatter

    def __call__(self, group: Sequence[JudgedAction], left_out: LeftOutCounts) -> Iterator[tuple[str, Example]]:
        for one in _with_corrections(group, left_out):
            yield one.step.agent, _single_example(self._formatter, one, _correction_messages(one))


class LabelledExamples:
    """`kto`: the replies of agents. `label` is whether the score is at least `threshold`; other columns as of
    `ActionExamples`."""

    def __init__(self, formatter: PromptFormatter, threshold: float) -> None:
        self._formatter, self._threshold = formatter, threshold

    def __call__(self, group: Sequence[JudgedAction], left_out: LeftOutCounts) -> Iterator[tuple[str, Example]]:
        for one in group:
            example = _single_example(self._formatter, one, _reply_messages(one))
            yield one.step.agent, {**example, "label": one.score >= self._threshold}


class CorrectionPairs:
    """`dpo`: the coach's correction preferred to the reply. Columns `prompt`, `chosen`, `rejected`, `source`."""

    def __init__(self, formatter: PromptFormatter) -> None:
        self._formatter = formatter

    def __call__(self, group: Sequence[JudgedAction], left_out: LeftOutCounts) -> Iterator[tuple[str, Example]]:
        for one in _with_corrections(group, left_out):
            pair = {"chosen": _correction_messages(one), "rejected": _reply_messages(one)}
            yield one.step.agent, {**self._formatter.prompt(one), **pair, "source": one.step.id}


class SiblingPairs:
    """`dpo`: among the actions of one agent at one turn of one task after equal prompts, the best is preferred to each
    that is at least `gap` points worse. Columns of `CorrectionPairs` and `gap`; `source` names both steps, the chosen
    one first.

    Among equal scores the first action is the best. An action in no pair is counted as left out.
    """

    def __init__(self, formatter: PromptFormatter, gap: float) -> None:
        self._formatter, self._gap = formatter, gap

    def __call__(self, group: Sequence[JudgedAction], left_out: LeftOutCounts) -> Iterator[tuple[str, Example]]:
        siblings: dict[tuple[str, int, str], list[JudgedAction]] = defaultdict(list)
        for one in group:
            prompt = json.dumps(self._formatter.prompt(one), sort_keys=True)
            siblings[one.step.agent, one.step.turn, prompt].append(one)
        for (agent, _, _), same in siblings.items():
            pairs = list(self._pairs(same))
            for example in pairs:
                yield agent, example
            left_out[agent, "in no pair"] += len(same) - len(pairs) - bool(pairs)

    def _pairs(self, same: Sequence[JudgedAction]) -> Iterator[Example]:
        best = max(same, key=lambda one: one.score)
        for one in same:
            gap = best.score - one.score
            if one is not best and gap >= self._gap and _reply_messages(one) != _reply_messages(best):
                pair = {"chosen": _reply_messages(best), "rejected": _reply_messages(one)}
                source = f"{best.step.id} > {one.step.id}"
                yield {**self._formatter.prompt(one), **pair, "source": source, "gap": gap}


def _with_corrections(group: Sequence[JudgedAction], left_out: Counter[tuple[str, str]]) -> Iterator[JudgedAction]:
    for one in group:
        if (one.verdict.correction or "").strip():
            yield one
        else:
            left_out[one.step.agent, "no correction"] += 1


def _single_example(formatter: PromptFormatter, one: JudgedAction, completion: list[Example]) -> Example:
    return {**formatter.prompt(one), "completion": completion, "source": one.step.id, "score": one.score}


def _reply_messages(one: JudgedAction) -> list[Example]:
    return [message_dict(one.step.reply)]


def _correction_messages(one: JudgedAction) -> list[Example]:
    return [message_dict(Message(role="assistant", content=str(one.verdict.correction)))]
