"""What a coach is asked to answer with: portable JSON schemas, and the one parser of replies.

A reply is a JSON object that fits, alone or in one Markdown code fence, or it is a BadReply: nothing is searched for in
prose or in think text, nothing is rounded, clipped or filled in. A coach that cannot judge says so with the score null
and a reason: it abstains. Without that way out it would have to make up a number.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from mappa_core.calls.thinking import split_thought
from mappa_core.errors import CoachError
from mappa_core.records import MAX_SCORE, NOBODY, Verdict


class BadReply(CoachError):
    """A reply is not what was asked for.

    The message is in our own words and quotes nothing: it goes back to the coach outside of any fence, and what stands
    in a reply may have been put there by an agent.
    """


Found = Verdict | BadReply
"""What a reply says of one action, or what is wrong with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """What a reply has to be: the judgement of one action or, where `actions` is set, of each of that many actions,
    numbered from 1. `agents` are those who may be blamed; `correction` asks for a better action in full."""

    agents: tuple[str, ...]
    correction: bool = False
    actions: int | None = None

    @property
    def count(self) -> int:
        """Verdicts that a reply gives."""
        return 1 if self.actions is None else self.actions

    @property
    def schema(self) -> Mapping[str, Any]:
        """JSON schema in the portable form: objects with every key required and no other, what may be missing as an
        `anyOf` with null, and no bounds, which are for the parser to check. It is shared and not to be changed."""
        return _schema(self.agents, self.correction, self.actions is not None)

    def parse(self, text: str) -> tuple[Found, ...]:
        """What `text` says of each action, in order. An action that is missing, judged twice or judged in a way that
        does not fit fails alone.

        Raises:
            BadReply: the reply as a whole does not fit.
        """
        reply = _answer_in(text)
        if self.actions is None:
            return (self._verdict(reply, ()),)
        _check_object(reply, ("actions",))
        entries: dict[int, list[Any]] = {number: [] for number in range(1, self.actions + 1)}
        for entry in _list(reply["actions"]):
            entries[self._number(entry)].append(entry)
        return tuple(self._found(number, same) for number, same in entries.items())

    def _number(self, entry: Any) -> int:
        number = entry.get("action") if isinstance(entry, dict) else None
        if type(number) is not int or not 1 <= number <= self.count:
            raise BadReply(f"every entry of `actions` must have an `action`, a whole number from 1 to {self.count}")
        return number

    def _found(self, number: int, entries: Sequence[Any]) -> Found:
        if len(entries) != 1:
            return BadReply(f"action {number} is judged twice" if entries else f"action {number} is missing")
        try:
            return self._verdict(entries[0], ("action",))
        except BadReply as error:
            return BadReply(f"action {number}: {error}")

    def _verdict(self, entry: Any, further: tuple[str, ...]) -> Verdict:
        _check_object(entry, (*further, *_keys(self.correction)))
        if not _is_text(entry["reasoning"]) or not entry["reasoning"].strip():
            raise BadReply("`reasoning` must be text that is not empty")
        to_blame = (*self.agents, NOBODY)
        if entry["blame"] is not None and entry["blame"] not in to_blame:
            raise BadReply(f"`blame` must be {', '.join(to_blame)} or null")
        correction = entry["correction"] if self.correction else None
        if correction is not None and not _is_text(correction):
            raise BadReply("`correction` must be text, or null where there is none")
        score = _score(entry["score"])
        return Verdict(
            status="abstained" if score is None else "scored",
            score=score,
            reasoning=entry["reasoning"],
            blame=entry["blame"],
            correction=correction or None,
        )


def _keys(correction: bool) -> tuple[str, ...]:
    """The keys of a judgement in the order of writing: reasons come before the number that they are to lead to."""
    return ("reasoning", "blame", "score", *(("correction",) if correction else ()))


@lru_cache(maxsize=64)
def _schema(agents: tuple[str, ...], correction: bool, several: bool) -> Mapping[str, Any]:
    properties = {
        "reasoning": {"type": "string", "description": "Why, in a few sentences, before the score."},
        "blame": _or_null(
            {"type": "string", "enum": list(dict.fromkeys((*agents, NOBODY)))},
            f"The agent at fault for what is wrong, {NOBODY} where nothing is, null where it cannot be told.",
        ),
        "score": _or_null({"type": "number"}, f"0 to {MAX_SCORE:g} points; null where the action cannot be judged."),
        "correction": _or_null({"type": "string"}, "A better action in full where the score is low, else null."),
    }
    judgement = {key: properties[key] for key in _keys(correction)}
    if not several:
        return _object(judgement)
    number = {"type": "integer", "description": "Number of the action, from 1; each action once."}
    return _object({"actions": {"type": "array", "items": _object({"action": number, **judgement})}})


def _object(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _or_null(schema: Mapping[str, Any], description: str) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}], "description": description}


class _Doubled(dict[str, Any]):
    """An object with a key that occurs twice: it does not say which of both holds."""


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    return found if len(found) == len(pairs) else _Doubled(found)


_DECODER = json.JSONDecoder(object_pairs_hook=_pairs)
_FENCE = re.compile(r"(`{3,})(?:json)?[ \t\r]*\n(.*)\n\1", re.DOTALL | re.IGNORECASE)


def _answer_in(text: str) -> Any:
    """The JSON that `text` is, or that follows its think text. Not the other way round: a reply that quotes a think tag
    in a string is no thought."""
    try:
        return _decoded(_unfenced(text))
    except BadReply:
        thought, said = split_thought(text)
        if thought is None:
            raise
    return _decoded(_unfenced(said))


def _unfenced(text: str) -> str:
    fenced = _FENCE.fullmatch(text.strip())
    return fenced[2] if fenced else text


def _decoded(text: str) -> Any:
    if not text.strip():
        raise BadReply("it is empty")
    try:
        return _DECODER.decode(text)
    except json.JSONDecodeError as error:
        what = error.msg.removesuffix(" at")
        raise BadReply(f"it is no JSON: {what} at line {error.lineno}, column {error.colno}") from error
    except (ValueError, RecursionError) as error:
        raise BadReply("it holds a number that is too long or lists that are nested too deep") from error


def _check_object(value: Any, keys: tuple[str, ...]) -> None:
    if not isinstance(value, dict):
        raise BadReply(f"there must be a JSON object with the keys {', '.join(keys)}")
    if isinstance(value, _Doubled):
        raise BadReply("a key occurs twice")
    if missing := [key for key in keys if key not in value]:
        raise BadReply(f"the key `{missing[0]}` is missing")
    if len(value) > len(keys):
        raise BadReply(f"there is a key that was not asked for; the keys are {', '.join(keys)}")


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise BadReply("`actions` must be a list")
    return value


def _is_text(value: Any) -> bool:
    """Whether it is a string that can be written anywhere: JSON can also hold halves of characters."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _score(value: Any) -> float | None:
    if value is None:
        return None
    # By type, for True is an int; NaN, which Python reads, lies in no interval.
    if type(value) not in (int, float) or not 0 <= value <= MAX_SCORE:
        raise BadReply(f"`score` must be a number from 0 to {MAX_SCORE:g}, or null where the action cannot be judged")
    return float(value)
