"""Judged actions to examples in the forms that trainers read: supervised, preferences in pairs, and single labels.

Columns are those of TRL's conversational data: lists of messages with `role` and `content`, and where they have them
`reasoning_content` (think text), `tool_calls`, `name` and `tool_call_id`. A prompt holds the messages that the agent
was shown, a completion what it answered.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from mappa_core.engine.chat import message_dict, tool_schema
from mappa_core.records import Message, ToolSpec
from mappa_core.studies.dataset.choosing import Judged, LeftOut

Form = Literal["sft", "dpo", "kto"]
Source = Literal["actions", "corrections", "siblings"]
Example = dict[str, Any]
Make = Callable[[Sequence[Judged], LeftOut], Iterator[tuple[str, Example]]]
"""The examples, each with its agent, of the actions of one task in one iteration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What agents see beside messages: the tools of the run by name, and what each agent's chat template is given."""

    tools: Mapping[str, ToolSpec]
    template_kwargs: Mapping[str, Mapping[str, Any]]

    def prompt(self, one: Judged) -> Example:
        """The columns that say what an action answered to. Tools are JSON text, which trainers read."""
        seen: Example = {"prompt": [message_dict(message) for message in one.step.messages]}
        if specs := (*(self.tools[name] for name in one.step.tools), *one.step.own_tools):
            seen["tools"] = json.dumps([tool_schema(spec) for spec in specs])
        if kwargs := self.template_kwargs.get(one.step.agent):
            seen["chat_template_kwargs"] = dict(kwargs)
        return seen


class Actions:
    """`sft`: what agents wrote, as it was. Columns `prompt`, `completion`, `score`, `source` (the step's id)."""

    def __init__(self, sight: Sight) -> None:
        self._sight = sight

    def __call__(self, group: Sequence[Judged], left_out: LeftOut) -> Iterator[tuple[str, Example]]:
        for one in group:
            yield one.step.agent, _single(self._sight, one, _said(one))


class Corrections:
    """`sft`: what the coach would rather have seen, in place of what the agent wrote. Columns as of `Actions`; `score`
    is that of the action."""

    def __init__(self, sight: Sight) -> None:
        self._sight = sight

    def __call__(self, group: Sequence[Judged], left_out: LeftOut) -> Iterator[tuple[str, Example]]:
        for one in _corrected(group, left_out):
            yield one.step.agent, _single(self._sight, one, _corrections(one))


class Labels:
    """`kto`: what agents wrote, and whether its score is at least `threshold`. Columns of `Actions` and `label`."""

    def __init__(self, sight: Sight, threshold: float) -> None:
        self._sight, self._threshold = sight, threshold

    def __call__(self, group: Sequence[Judged], left_out: LeftOut) -> Iterator[tuple[str, Example]]:
        for one in group:
            example = _single(self._sight, one, _said(one))
            yield one.step.agent, {**example, "label": one.score >= self._threshold}


class CorrectedPairs:
    """`dpo`: the coach's correction over the action. Columns `prompt`, `chosen`, `rejected`, `source`."""

    def __init__(self, sight: Sight) -> None:
        self._sight = sight

    def __call__(self, group: Sequence[Judged], left_out: LeftOut) -> Iterator[tuple[str, Example]]:
        for one in _corrected(group, left_out):
            pair = {"chosen": _corrections(one), "rejected": _said(one)}
            yield one.step.agent, {**self._sight.prompt(one), **pair, "source": one.step.id}


class SiblingPairs:
    """`dpo`: of actions of one agent at one turn of one task after equal prompts, the best over each that is at least
    `gap` points worse. Columns of `CorrectedPairs` and `gap`; `source` names both steps, the chosen one first.

    Of equal scores the first one is the best. An action that takes part in no pair is left out.
    """

    def __init__(self, sight: Sight, gap: float) -> None:
        self._sight, self._gap = sight, gap

    def __call__(self, group: Sequence[Judged], left_out: LeftOut) -> Iterator[tuple[str, Example]]:
        siblings: dict[tuple[str, int, str], list[Judged]] = defaultdict(list)
        for one in group:
            prompt = json.dumps(self._sight.prompt(one), sort_keys=True)
            siblings[one.step.agent, one.step.turn, prompt].append(one)
        for (agent, _, _), same in siblings.items():
            pairs = list(self._pairs(same))
            for example in pairs:
                yield agent, example
            left_out[agent, "in no pair"] += len(same) - len(pairs) - bool(pairs)

    def _pairs(self, same: Sequence[Judged]) -> Iterator[Example]:
        best = max(same, key=lambda one: one.score)
        for one in same:
            gap = best.score - one.score
            if one is not best and gap >= self._gap and _said(one) != _said(best):
                pair = {"chosen": _said(best), "rejected": _said(one)}
                source = f"{best.step.id} > {one.step.id}"
                yield {**self._sight.prompt(one), **pair, "source": source, "gap": gap}


def _corrected(group: Sequence[Judged], left_out: Counter[tuple[str, str]]) -> Iterator[Judged]:
    for one in group:
        if (one.verdict.correction or "").strip():
            yield one
        else:
            left_out[one.step.agent, "no correction"] += 1


def _single(sight: Sight, one: Judged, completion: list[Example]) -> Example:
    return {**sight.prompt(one), "completion": completion, "source": one.step.id, "score": one.score}


def _said(one: Judged) -> list[Example]:
    return [message_dict(one.step.reply)]


def _corrections(one: Judged) -> list[Example]:
    return [message_dict(Message(role="assistant", content=str(one.verdict.correction)))]
