"""Reads OpenTelemetry spans from JSON, in the form that SDKs print and in that of OTLP exports."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from mappa.look.importing.log_mapping import LogFormatError

AROUND = "agents around what models wrote"
"""Why the span of an agent is no action."""
_NANOSECONDS = 1e9
_MILLISECONDS = 1e3
_NANOSECOND = re.compile(r"[0-9]{1,20}")
"""A time of OTLP, which has 64 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A span; `place` is its file and line. Times are seconds since the epoch."""

    trace: str
    id: str
    parent: str | None
    name: str
    start: float
    end: float
    attributes: Mapping[str, Any]
    failed: bool
    place: str
    note: str = ""
    """Why it is no action, where that takes more than its kind."""
    error: str = ""
    """What its status says of its failure."""

    @property
    def operation(self) -> str | None:
        return self.attributes.get("gen_ai.operation.name")

    def text(self, key: str) -> str | None:
        """The text of an attribute. Raises LogFormatError if it is of another type."""
        value = self.attributes.get(key)
        if value is not None and not isinstance(value, str):
            raise LogFormatError(f"{key}: not text: {value!r}")
        return value


def looks_like_spans(row: Mapping[str, Any]) -> bool:
    """Whether the first line of a file holds spans."""
    return "resourceSpans" in row or "context.trace_id" in row or ("context" in row and "attributes" in row)


def read_spans(row: Mapping[str, Any], place: str) -> list[Span]:
    """Read the spans of a line. Raises LogFormatError, naming the key."""
    if "resourceSpans" not in row:
        return [_read_sdk_span(row, place)]
    found = []
    for one, resource in enumerate(_require_list(row, "resourceSpans", "")):
        for two, scope in enumerate(_require_list(resource, "scopeSpans", f"resourceSpans.{one}.")):
            where = f"resourceSpans.{one}.scopeSpans.{two}."
            for three, span in enumerate(_require_list(scope, "spans", where)):
                found.append(_read_otlp_span(span, f"{where}spans.{three}", place))
    return found


def _read_sdk_span(row: Mapping[str, Any], place: str) -> Span:
    context, attributes = row.get("context"), row.get("attributes")
    if not isinstance(context, Mapping) or not isinstance(attributes, Mapping):
        raise LogFormatError(
            "context, attributes: are not there; a line is a span as an SDK prints it, or resourceSpans"
        )
    status = row.get("status")
    return Span(
        trace=_read_id(context.get("trace_id"), "context.trace_id"),
        id=_read_id(context.get("span_id"), "context.span_id"),
        parent=None if row.get("parent_id") is None else _read_id(row["parent_id"], "parent_id"),
        name=str(row.get("name")),
        start=_read_time(row.get("start_time"), "start_time"),
        end=_read_time(row.get("end_time"), "end_time"),
        attributes=attributes,
        failed="ERROR" in (row.get("status_code"), status.get("status_code") if isinstance(status, Mapping) else None),
        error=str((status.get("description") if isinstance(status, Mapping) else row.get("status_message")) or ""),
        place=place,
    )


def _read_otlp_span(span: Any, where: str, place: str) -> Span:
    if not isinstance(span, Mapping):
        raise LogFormatError(f"{where}: not an object with keys: {str(span)[:80]!r}")
    times = [span.get("startTimeUnixNano"), span.get("endTimeUnixNano")]
    if not all(isinstance(time, str | int) and _NANOSECOND.fullmatch(str(time)) for time in times):
        raise LogFormatError(f"{where}: startTimeUnixNano and endTimeUnixNano are not whole numbers: {times!r}")
    start, end = (int(str(time)) / _NANOSECONDS for time in times)
    status = span.get("status")
    return Span(
        trace=_read_id(span.get("traceId"), f"{where}.traceId"),
        id=_read_id(span.get("spanId"), f"{where}.spanId"),
        parent=_read_id(span["parentSpanId"], f"{where}.parentSpanId") if span.get("parentSpanId") else None,
        name=str(span.get("name")),
        start=start,
        end=end,
        attributes=_read_attributes(span.get("attributes", []), f"{where}.attributes"),
        failed=isinstance(status, Mapping) and status.get("code") in (2, "STATUS_CODE_ERROR"),
        error=str(status.get("message") or "") if isinstance(status, Mapping) else "",
        place=place,
    )


def _read_attributes(raw: Any, where: str) -> dict[str, Any]:
    if not isinstance(raw, list):
        raise LogFormatError(f"{where}: not a list of keys and values")
    found = {}
    for number, one in enumerate(raw):
        if not isinstance(one, Mapping) or not isinstance(one.get("key"), str):
            raise LogFormatError(f"{where}.{number}: has no key")
        if (value := _read_any_value(one.get("value"), f"{where}.{number}.value")) is not None:
            found[one["key"]] = value
    return found


def _read_any_value(raw: Any, where: str) -> Any:
    """Read an OTLP value: an object whose single key is its type, or an empty one where there is none."""
    if raw == {}:
        return None
    if not isinstance(raw, Mapping) or len(raw) != 1:
        raise LogFormatError(f"{where}: not a value with its type")
    ((kind, value),) = raw.items()
    if kind == "intValue":
        return _read_int(value, where)
    if kind in ("arrayValue", "kvlistValue"):
        values = value.get("values", []) if isinstance(value, Mapping) else None
        if not isinstance(values, list):
            raise LogFormatError(f"{where}: {kind} is not an object with a list of values")
        return (
            _read_attributes(values, where)
            if kind == "kvlistValue"
            else [_read_any_value(one, where) for one in values]
        )
    if kind not in ("stringValue", "boolValue", "doubleValue", "bytesValue"):
        raise LogFormatError(f"{where}: {kind} is no type of a value")
    return value


def _read_int(value: Any, where: str) -> int:
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        raise LogFormatError(f"{where}: not a whole number: {value!r}") from None


def _require_list(record: Any, key: str, where: str) -> list[Any]:
    value = record.get(key) if isinstance(record, Mapping) else None
    if not isinstance(value, list):
        raise LogFormatError(f"{where}{key}: not a list")
    return value


def _read_id(value: Any, key: str) -> str:
    if not isinstance(value, str) or not value:
        raise LogFormatError(f"{key}: not an id: {value!r}")
    return value.removeprefix("0x").lower()


def _read_time(value: Any, key: str) -> float:
    """Read a time: ISO 8601, or milliseconds since the epoch."""
    try:
        if isinstance(value, int) and not isinstance(value, bool):
            return value / _MILLISECONDS
        return datetime.fromisoformat(value).timestamp()
    except (TypeError, ValueError, OverflowError):
        raise LogFormatError(f"{key}: not a time: {value!r}") from None
