"""For authors of transports: parse untrusted answers of providers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from msgspec import DecodeError, json

from mappa_core.calls.errors import one_line
from mappa_core.errors import CallError

Shape = TypeVar("Shape")
StopReason = Literal["end", "length", "blocked"]


def decode_answer(body: str, shape: type[Shape]) -> Shape:
    """Decode the JSON in `body` as `shape`, a msgspec Struct with the needed fields. Require as little as possible: a
    missing field that the reply does not need should not lose the reply.

    Raises:
        CallError: `garbled`; it is no JSON, or of another shape.
    """
    try:
        return json.decode(body, type=shape)
    except DecodeError as error:
        raise CallError("garbled", f"{error}, in the answer {one_line(body)!r}") from None


def error_in(body: str) -> tuple[Mapping[str, Any], str]:
    """Return the fields of the error in `body`, and its full message.

    Servers write `{"error": {"message": …, …}}`, `{"error": "…"}`, the fields without `error` around them, or a list of
    one of these. Without a message the whole body is returned.
    """
    try:
        value = json.decode(body)
    except DecodeError:
        value = None
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    error = value.get("error", value) if isinstance(value, dict) else None
    fields = error if isinstance(error, dict) else {"message": error}
    message = fields.get("message")
    return fields, message if isinstance(message, str) else body.strip()


def stop_of(reason: str | None, known: Mapping[str, StopReason]) -> StopReason:
    """Map the provider's finish `reason` to the `stop` of a reply, by the table `known`.

    Raises:
        CallError: `garbled`; the reason is unknown, so the reply may be incomplete.
    """
    if reason is None or reason not in known:
        raise CallError("garbled", one_line(f"the reply ended for a reason that is not known: {reason}"))
    return known[reason]


def token_count(value: Any, *path: str) -> int | None:
    """Return the token count at `path` in a provider's usage object; None if it is missing or no whole number from 0
    on."""
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value if type(value) is int and value >= 0 else None


def token_sum(*counts: int | None) -> int | None:
    """Return the sum of `counts`; None if one of them is unknown."""
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None
