"""Where spans go: a collector over OTLP/HTTP, or a file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    ConsoleSpanExporter,
    SimpleSpanProcessor,
    SpanExporter,
    SpanExportResult,
)
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from mappa_core import TrackedRun
from mappa_trackers.options import OtelOptions

MOST_WAITING = 20_000
"""Spans that wait to be sent; later ones are dropped."""


class GivenIds(IdGenerator):
    """Gives the next span the ids that it was told. All spans are started by one thread."""

    def __init__(self) -> None:
        self._trace_id, self._span_id = 1, 1

    def following(self, trace_id: int, span_id: int) -> None:
        self._trace_id, self._span_id = trace_id, span_id

    def generate_trace_id(self) -> int:
        return self._trace_id

    def generate_span_id(self) -> int:
        return self._span_id


class Counting(SpanExporter):
    """Counts the spans that `inner` could not deliver."""

    def __init__(self, inner: SpanExporter, *, is_file: bool) -> None:
        self.lost = 0
        self.is_file = is_file
        self._inner = inner

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._inner.export(spans)
        if result is not SpanExportResult.SUCCESS:
            self.lost += len(spans)
        return result

    def shutdown(self) -> None:
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._inner.force_flush(timeout_millis)


class _ToFile(ConsoleSpanExporter):
    """Spans as lines of a file."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8")
        super().__init__(out=self._file, formatter=lambda span: span.to_json(indent=None) + os.linesep)

    def shutdown(self) -> None:
        self._file.close()


def open_exporter(options: OtelOptions, folder: Path) -> Counting:
    """What takes the spans. Without an endpoint the library reads the environment."""
    if options.file is not None:
        return Counting(_ToFile(folder / options.file), is_file=True)
    return Counting(OTLPSpanExporter(endpoint=options.endpoint), is_file=False)


def provider(exporter: Counting, ids: GivenIds, *, service: str, run: TrackedRun) -> TracerProvider:
    """What makes the spans of a run."""
    about = {"service.name": service, "mappa.run": run.id, "mappa.run.name": run.name, "mappa.seed": run.seed}
    # What else sets up OpenTelemetry in this process (a sampler, limits) is not to thin out these spans.
    made = TracerProvider(sampler=ALWAYS_ON, resource=Resource.create(about), id_generator=ids, shutdown_on_exit=False)
    made.add_span_processor(
        SimpleSpanProcessor(exporter)
        if exporter.is_file
        else BatchSpanProcessor(exporter, max_queue_size=MOST_WAITING, max_export_batch_size=256)
    )
    return made
