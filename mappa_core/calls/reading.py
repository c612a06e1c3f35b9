"""For authors of transports: what a provider answers, read without trust."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from msgspec import DecodeError, json

from mappa_core.calls.faults import one_line
from mappa_core.errors import CallError

Shape = TypeVar("Shape")
Stop = Literal["end", "length", "blocked"]


def decode_answer(body: str, shape: type[Shape]) -> Shape:
    """The JSON in `body` as `shape`, a msgspec Struct with the fields that matter. Ask for little: a field that is
    missing or of another type, without which there still is a reply, is no reason to have none.

    Raises:
        CallError: `garbled`; it is no JSON, or of another shape.
    """
    try:
        return json.decode(body, type=shape)
    except DecodeError as error:
        raise CallError("garbled", f"{error}, in the answer {one_line(body)!r}") from None


def error_in(body: str) -> tuple[Mapping[str, Any], str]:
    """The fields of the error that `body` tells of, and its message, in full length.

    Servers write `{"error": {"message": …, …}}`, `{"error": "…"}`, the fields without `error` around them, or a list of
    one of these. Where there is no message it is the whole body.
    """
    try:
        said = json.decode(body)
    except DecodeError:
        said = None
    if isinstance(said, list) and len(said) == 1:
        said = said[0]
    error = said.get("error", said) if isinstance(said, dict) else None
    fields = error if isinstance(error, dict) else {"message": error}
    message = fields.get("message")
    return fields, message if isinstance(message, str) else body.strip()


def stop_of(reason: str | None, known: Mapping[str, Stop]) -> Stop:
    """The `stop` of a reply that ended for the provider's `reason`, by what is `known` of its reasons.

    Raises:
        CallError: `garbled`; it is not known, so what is there may be half a reply.
    """
    if reason is None or reason not in known:
        raise CallError("garbled", one_line(f"the reply ended for a reason that is not known: {reason}"))
    return known[reason]


def token_count(said: Any, *path: str) -> int | None:
    """The number of tokens at `path` in what a provider says of usage; None where there is none, or something else than
    a whole number from 0 on."""
    for name in path:
        said = said.get(name) if isinstance(said, dict) else None
    return said if type(said) is int and said >= 0 else None


def token_sum(*counts: int | None) -> int | None:
    """All `counts` together; None where one of them is unknown."""
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None
