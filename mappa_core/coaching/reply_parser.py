"""Reply format of LLM coaches: portable JSON schemas, and the parser of replies, which searches for nothing in prose
and rounds, clips or fills in nothing. A coach that cannot judge abstains by a null score and a reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from mappa_core.calls.reply_text import parse_json
from mappa_core.coaching.data_fences import quote_name
from mappa_core.errors import CoachError
from mappa_core.records import MAX_SCORE, NOBODY, Verdict


class BadReply(CoachError):
    """A reply does not match its schema. The message quotes nothing of the reply, which may hold text of an agent: it
    is sent back outside of any fence."""


ParsedVerdict = Verdict | BadReply
"""The verdict on one action, or what is wrong with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplySchema:
    """The required form of a reply: the judgement of one action or, if `actions` is set, of that many actions, numbered
    from 1. `agents` may be blamed; `correction` asks for a better action in full."""

    agents: tuple[str, ...]
    correction: bool = False
    actions: int | None = None

    @property
    def count(self) -> int:
        return 1 if self.actions is None else self.actions

    @property
    def json_schema(self) -> Mapping[str, Any]:
        """Portable JSON schema: all keys required, no others allowed, optional values as `anyOf` with null, and no
        bounds, which the parser checks. The object is shared and must not be modified."""
        return _schema(self.agents, self.correction, self.actions is not None)

    def parse(self, text: str) -> tuple[ParsedVerdict, ...]:
        """Parse the verdicts on all actions, in order. An action that is missing, duplicated or judged invalidly fails
        alone. Raises BadReply if the reply as a whole is invalid."""
        try:
            reply = parse_json(text)
        except ValueError as error:
            raise BadReply(str(error)) from error
        if self.actions is None:
            return (self._parse_verdict(reply, ()),)
        check_object(reply, ("actions",))
        if not isinstance(reply["actions"], list):
            raise BadReply("`actions` must be a list")
        entries: dict[int, list[Any]] = {number: [] for number in range(1, self.actions + 1)}
        for entry in reply["actions"]:
            number = entry.get("action") if isinstance(entry, dict) else None
            # By exact type, as True is an int. One bad number is a fault of the whole: it may be of any action.
            if type(number) is not int or number not in entries:
                raise BadReply(f"every entry of `actions` must have an `action`, a whole number from 1 to {self.count}")
            entries[number].append(entry)
        return tuple(self._parse_entry(number, judgements) for number, judgements in entries.items())

    def _parse_entry(self, number: int, entries: Sequence[Any]) -> ParsedVerdict:
        if len(entries) != 1:
            return BadReply(f"action {number} is judged twice" if entries else f"action {number} is missing")
        try:
            return self._parse_verdict(entries[0], ("action",))
        except BadReply as error:
            return BadReply(f"action {number}: {error}")

    def _parse_verdict(self, entry: Any, extra_keys: tuple[str, ...]) -> Verdict:
        check_object(entry, (*extra_keys, *_keys(self.correction)))
        if not isinstance(entry["reasoning"], str) or not entry["reasoning"].strip():
            raise BadReply("`reasoning` must be text that is not empty")
        to_blame = (*self.agents, NOBODY)
        if entry["blame"] is not None and entry["blame"] not in to_blame:
            raise BadReply(f"`blame` must be {', '.join(map(quote_name, to_blame))} or null")
        correction = entry["correction"] if self.correction else None
        if correction is not None and not isinstance(correction, str):
            raise BadReply("`correction` must be text, or null where there is none")
        score = parse_score(entry["score"])
        return Verdict(
            status="abstained" if score is None else "scored",
            score=score,
            reasoning=entry["reasoning"],
            blame=entry["blame"],
            correction=correction or None,
        )


def _keys(correction: bool) -> tuple[str, ...]:
    # In the order of generation: the reasoning comes before the score.
    return ("reasoning", "blame", "score", *(("correction",) if correction else ()))


@lru_cache(maxsize=64)
def _schema(agents: tuple[str, ...], correction: bool, several: bool) -> Mapping[str, Any]:
    properties = {
        "reasoning": {"type": "string", "description": "Why, in a few sentences, before the score."},
        "blame": nullable(
            {"type": "string", "enum": list(dict.fromkeys((*agents, NOBODY)))},
            f"The agent at fault for what is wrong, {NOBODY} where nothing is, null where it cannot be told.",
        ),
        "score": nullable({"type": "number"}, f"0 to {MAX_SCORE:g} points; null where the action cannot be judged."),
        "correction": nullable({"type": "string"}, "A better action in full where the score is low, else null."),
    }
    judgement = {key: properties[key] for key in _keys(correction)}
    if not several:
        return object_schema(judgement)
    number = {"type": "integer", "description": "Number of the action, from 1; each action once."}
    return object_schema({"actions": {"type": "array", "items": object_schema({"action": number, **judgement})}})


def object_schema(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Build the portable schema of an object with these keys, all required, and no others."""
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def nullable(schema: Mapping[str, Any], description: str) -> dict[str, Any]:
    """Build the portable schema of a value or null."""
    return {"anyOf": [schema, {"type": "null"}], "description": description}


def check_object(value: Any, keys: tuple[str, ...]) -> None:
    """Raise BadReply unless `value` is an object with exactly these keys."""
    if not isinstance(value, dict):
        raise BadReply(f"there must be a JSON object with the keys {', '.join(keys)}")
    missing = [key for key in keys if key not in value]
    if missing:
        raise BadReply(f"the key `{missing[0]}` is missing")
    if len(value) > len(keys):
        raise BadReply(f"there is a key that was not asked for; the keys are {', '.join(keys)}")


def parse_score(value: Any) -> float | None:
    """Return the points, or None for null. Raises BadReply for what is no number from 0 to MAX_SCORE."""
    if value is None:
        return None
    # By exact type, as True is an int; NaN, which some parsers accept, is in no interval.
    if type(value) not in (int, float) or not 0 <= value <= MAX_SCORE:
        raise BadReply(f"`score` must be a number from 0 to {MAX_SCORE:g}, or null where the action cannot be judged")
    return float(value)
