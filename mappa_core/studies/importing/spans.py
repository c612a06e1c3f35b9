"""OpenTelemetry spans as JSON, read: as the SDKs print them, and as OTLP exports them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from mappa_core.studies.importing.mapping import BadLog

_NANOSECONDS = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A span; `place` is where it stands. Times are seconds since the epoch."""

    trace: str
    id: str
    parent: str | None
    name: str
    began: float
    ended: float
    attributes: Mapping[str, Any]
    failed: bool
    place: str

    @property
    def operation(self) -> str | None:
        return self.attributes.get("gen_ai.operation.name")

    def text(self, key: str) -> str | None:
        """The text of an attribute. Raises BadLog where it is something else."""
        value = self.attributes.get(key)
        if value is not None and not isinstance(value, str):
            raise BadLog(f"{key}: not text: {value!r}")
        return value


def looks_like_spans(row: Mapping[str, Any]) -> bool:
    """Whether the first line of a file is of spans."""
    return "resourceSpans" in row or ("context" in row and "attributes" in row)


def spans_of_line(row: Mapping[str, Any], place: str) -> list[Span]:
    """The spans of a line. Raises BadLog, naming the key."""
    if "resourceSpans" not in row:
        return [_printed(row, place)]
    found = []
    for one, resource in enumerate(_list(row, "resourceSpans", "")):
        for two, scope in enumerate(_list(resource, "scopeSpans", f"resourceSpans.{one}.")):
            where = f"resourceSpans.{one}.scopeSpans.{two}."
            for three, span in enumerate(_list(scope, "spans", where)):
                found.append(_exported(span, f"{where}spans.{three}", place))
    return found


def _printed(row: Mapping[str, Any], place: str) -> Span:
    context, attributes = row.get("context"), row.get("attributes")
    if not isinstance(context, Mapping) or not isinstance(attributes, Mapping):
        raise BadLog("context, attributes: are not there; a line is a span as an SDK prints it, or resourceSpans")
    status = row.get("status")
    return Span(
        trace=_hex(context.get("trace_id"), "context.trace_id"),
        id=_hex(context.get("span_id"), "context.span_id"),
        parent=None if row.get("parent_id") is None else _hex(row["parent_id"], "parent_id"),
        name=str(row.get("name")),
        began=_moment(row.get("start_time"), "start_time"),
        ended=_moment(row.get("end_time"), "end_time"),
        attributes=attributes,
        failed=isinstance(status, Mapping) and status.get("status_code") == "ERROR",
        place=place,
    )


def _exported(span: Mapping[str, Any], where: str, place: str) -> Span:
    times = [span.get("startTimeUnixNano"), span.get("endTimeUnixNano")]
    if not all(isinstance(time, str | int) and str(time).isdecimal() for time in times):
        raise BadLog(f"{where}: startTimeUnixNano and endTimeUnixNano are not whole numbers: {times!r}")
    began, ended = (int(str(time)) / _NANOSECONDS for time in times)
    status = span.get("status")
    return Span(
        trace=_hex(span.get("traceId"), f"{where}.traceId"),
        id=_hex(span.get("spanId"), f"{where}.spanId"),
        parent=_hex(span["parentSpanId"], f"{where}.parentSpanId") if span.get("parentSpanId") else None,
        name=str(span.get("name")),
        began=began,
        ended=ended,
        attributes=_attributes(span.get("attributes", []), f"{where}.attributes"),
        failed=isinstance(status, Mapping) and status.get("code") in (2, "STATUS_CODE_ERROR"),
        place=place,
    )


def _attributes(raw: Any, where: str) -> dict[str, Any]:
    if not isinstance(raw, list):
        raise BadLog(f"{where}: not a list of keys and values")
    found = {}
    for number, one in enumerate(raw):
        if not isinstance(one, Mapping) or not isinstance(one.get("key"), str):
            raise BadLog(f"{where}.{number}: has no key")
        found[one["key"]] = _any_value(one.get("value"), f"{where}.{number}.value")
    return found


def _any_value(raw: Any, where: str) -> Any:
    """A value of OTLP: an object whose one key says its type."""
    if not isinstance(raw, Mapping) or len(raw) != 1:
        raise BadLog(f"{where}: not a value with its type")
    ((kind, value),) = raw.items()
    if kind == "intValue":
        return int(value)
    if kind == "arrayValue":
        return [_any_value(one, where) for one in value.get("values", [])]
    if kind == "kvlistValue":
        return _attributes(value.get("values", []), where)
    if kind not in ("stringValue", "boolValue", "doubleValue", "bytesValue"):
        raise BadLog(f"{where}: {kind} is no type of a value")
    return value


def _list(record: Any, key: str, where: str) -> list[Any]:
    value = record.get(key) if isinstance(record, Mapping) else None
    if not isinstance(value, list):
        raise BadLog(f"{where}{key}: not a list")
    return value


def _hex(value: Any, key: str) -> str:
    if not isinstance(value, str) or not value:
        raise BadLog(f"{key}: not an id: {value!r}")
    return value.removeprefix("0x").lower()


def _moment(value: Any, key: str) -> float:
    try:
        return datetime.fromisoformat(value).timestamp()
    except (TypeError, ValueError):
        raise BadLog(f"{key}: not a time: {value!r}") from None
