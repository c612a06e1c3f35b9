"""For authors of transports: parse untrusted answers of providers."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any, Literal, TypeVar

from msgspec import DecodeError, json

from mappa_core.calls.bounded_reply import ERROR_BYTES, REPLY_BYTES
from mappa_core.calls.errors import ErrorParser, one_line
from mappa_core.errors import CallError
from mappa_core.records import Usage

Shape = TypeVar("Shape")
MAX_CONTAINERS, MAX_COMMAS = 150_000, 400_000
"""In the JSON of one reply, the text of the model included."""
StopReason = Literal["end", "length", "blocked"]  # Why a reply ended.


def decode_answer(body: str, shape: type[Shape], parse_error: ErrorParser | None = None) -> Shape:
    """Decode the JSON in `body` as `shape`, a msgspec Struct that requires as little as possible. Raises CallError
    `garbled` for anything else; with `parse_error`, also the error in a field `error` of `shape`, for providers that
    send errors with status 200."""
    _check_size(body)
    try:
        answer = json.decode(body, type=shape)
    except DecodeError as error:
        raise CallError("garbled", f"{error}, in the answer {one_line(body)!r}") from None
    if parse_error is not None and getattr(answer, "error", None) is not None:
        if len(body) > ERROR_BYTES:
            raise CallError("garbled", f"an error of {len(body)} characters")
        fault, message = parse_error(None, body)
        raise CallError(fault, one_line(message))
    return answer


def _check_size(body: str) -> None:
    """Raise CallError if what is parsed of `body` would be many times its size: an empty list takes two bytes in JSON
    and sixty in memory. Results of a batch, which are larger than a reply, may hold as many more values."""
    share = max(1.0, len(body) / REPLY_BYTES)
    containers, commas = body.count("{") + body.count("["), body.count(",")
    if containers > share * MAX_CONTAINERS or commas > share * MAX_COMMAS:
        raise CallError("garbled", f"an answer of {containers} objects and lists, and {commas} commas")


def map_stop_reason(reason: str | None, known: Mapping[str, StopReason]) -> StopReason:
    """Map the provider's finish `reason` to the `stop` of a reply, by the table `known`. Raises CallError `garbled` if
    the reason is unknown: the reply may be incomplete."""
    if reason is None or reason not in known:
        raise CallError("garbled", one_line(f"the reply ended for a reason that is not known: {reason}"))
    return known[reason]


def join_details(*details: str | None) -> str:
    """Join the provider's terms and reasons that are known, for `Reply.detail`."""
    return ": ".join(detail for detail in details if detail)


def parse_usage(
    value: Any,
    *,
    prompt: str | Sequence[str],
    completion: str | Sequence[str],
    cached: str | None = None,
    thinking: str | None = None,
    optional: Container[str] = (),
) -> Usage | None:
    """Parse the token counts of one call from a provider's usage object; None if `value` is none. Each count is given
    by its path, keys joined by dots, or by paths whose counts are added up, of which the `optional` ones may be missing
    or null. A count that is missing, or no whole number from 0 on, is None."""
    if not isinstance(value, dict):
        return None

    def total(paths: str | Sequence[str] | None) -> int | None:
        if paths is None or isinstance(paths, str):
            counts = [None if paths is None else _at(value, paths)]
        else:
            counts = [_at(value, path) for path in paths if path not in optional or _at(value, path) is not None]
        known = [count for count in counts if type(count) is int and count >= 0]
        # A sum over part of the counts would pass for the whole.
        return sum(known) if len(known) == len(counts) else None

    tokens = {"prompt_tokens": prompt, "completion_tokens": completion, "cached_tokens": cached}
    return Usage(calls=1, thinking_tokens=total(thinking), **{name: total(paths) for name, paths in tokens.items()})


def _at(value: Any, path: str) -> Any:
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value
