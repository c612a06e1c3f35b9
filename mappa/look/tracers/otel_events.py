"""Verdicts as events of OpenTelemetry, `gen_ai.evaluation.result`, which name the span that they are about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from mappa.look.tracers.judgements import Judgement
from mappa.look.tracers.tracer import import_client
from mappa_core import InputError

_EVENT = "gen_ai.evaluation.result"
_BATCH = 200
_NANOSECONDS = 1_000_000_000


class OtelEvents:
    """Sends events over OTLP/HTTP to where OTEL_EXPORTER_OTLP_ENDPOINT (or …_LOGS_ENDPOINT) says."""

    name = "the collector of OpenTelemetry"

    def __init__(self) -> None:
        exporting = import_client("opentelemetry.exporter.otlp.proto.http._log_exporter", "otlp")
        self._sdk = import_client("opentelemetry.sdk._logs", "otlp")
        self._logs = import_client("opentelemetry._logs", "otlp")
        self._names = import_client("opentelemetry.semconv._incubating.attributes.gen_ai_attributes", "otlp")
        self._scope = import_client("opentelemetry.sdk.util.instrumentation", "otlp").InstrumentationScope("mappa")
        self._resource = import_client("opentelemetry.sdk.resources", "otlp").Resource.create({"service.name": "mappa"})
        self._exporter = exporting.OTLPLogExporter()

    def write(self, judgements: Sequence[Judgement]) -> None:
        """Send the events. Raises InputError if an id is none of OpenTelemetry, or the collector refuses them."""
        events = [self._to_event(one) for one in judgements]
        for start in range(0, len(events), _BATCH):
            if self._exporter.export(events[start : start + _BATCH]).name != "SUCCESS":
                raise InputError(
                    f"{self.name} took {start:,} of {len(events):,} events: is OTEL_EXPORTER_OTLP_ENDPOINT right?"
                )
        self._exporter.shutdown()

    def _to_event(self, judgement: Judgement) -> Any:
        names, judge = self._names, judgement.judge
        attributes = {
            names.GEN_AI_EVALUATION_NAME: judge.name,
            names.GEN_AI_EVALUATION_SCORE_VALUE: judgement.score,
            names.GEN_AI_EVALUATION_SCORE_LABEL: judgement.label,
            names.GEN_AI_EVALUATION_EXPLANATION: judgement.explanation or None,
            **{f"mappa.{name}": _to_attribute(value) for name, value in judgement.metadata.items()},
        }
        record = self._logs.LogRecord(
            timestamp=int(judgement.time * _NANOSECONDS),
            trace_id=_parse_id(judgement.trace, 16),
            span_id=0 if judgement.span is None else _parse_id(judgement.span, 8),
            severity_number=self._logs.SeverityNumber.INFO,
            attributes={name: value for name, value in attributes.items() if value is not None},
            event_name=_EVENT,
        )
        return self._sdk.ReadableLogRecord(record, self._resource, self._scope)


def _to_attribute(value: Any) -> Any:
    """A value as an attribute may have it: objects as JSON."""
    return value if isinstance(value, bool | int | float | str) else msgspec.json.encode(value).decode()


def _parse_id(text: str, size: int) -> int:
    try:
        found = bytes.fromhex(text)
    except ValueError:
        found = b""
    if len(found) != size:
        raise InputError(f"{text!r} is no id of OpenTelemetry, which has {size} bytes in hexadecimal digits")
    return int.from_bytes(found)
