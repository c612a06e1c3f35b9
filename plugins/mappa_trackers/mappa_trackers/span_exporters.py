"""Span exporters: to a collector over OTLP/HTTP, or to a file."""

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
from mappa_core.files import open_log
from mappa_trackers.options import OtelOptions

MAX_QUEUED_SPANS = 20_000
"""Spans that may wait to be sent; further ones are dropped."""


class PresetIdGenerator(IdGenerator):
    """Gives the next span the ids set by `set_next`. All spans are started by one thread."""

    def __init__(self) -> None:
        self._trace_id, self._span_id = 1, 1

    def set_next(self, trace_id: int, span_id: int) -> None:
        self._trace_id, self._span_id = trace_id, span_id

    def generate_trace_id(self) -> int:
        return self._trace_id

    def generate_span_id(self) -> int:
        return self._span_id


class CountingExporter(SpanExporter):
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


class _FileExporter(ConsoleSpanExporter):
    """Writes spans to a file, one JSON object a line."""

    def __init__(self, file: str, folder: Path) -> None:
        path = Path(file)
        if path.is_absolute():
            path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open_log(path.parent, path.name) if path.is_absolute() else open_log(folder, path.as_posix())
        super().__init__(out=self._file, formatter=lambda span: span.to_json(indent=None) + os.linesep)

    def shutdown(self) -> None:
        self._file.close()


def open_exporter(options: OtelOptions, folder: Path) -> CountingExporter:
    """Open the exporter that the options name. Without an endpoint the library reads the environment."""
    if options.file is not None:
        return CountingExporter(_FileExporter(options.file, folder), is_file=True)
    return CountingExporter(OTLPSpanExporter(endpoint=options.endpoint), is_file=False)


def build_provider(
    exporter: CountingExporter, ids: PresetIdGenerator, *, service: str, run: TrackedRun
) -> TracerProvider:
    """Build the tracer provider of a run."""
    attributes = {"service.name": service, "mappa.run": run.id, "mappa.run.name": run.name, "mappa.seed": run.seed}
    # Samplers and limits that others set up for OpenTelemetry in this process must not drop these spans.
    provider = TracerProvider(
        sampler=ALWAYS_ON, resource=Resource.create(attributes), id_generator=ids, shutdown_on_exit=False
    )
    provider.add_span_processor(
        SimpleSpanProcessor(exporter)
        if exporter.is_file
        else BatchSpanProcessor(exporter, max_queue_size=MAX_QUEUED_SPANS, max_export_batch_size=256)
    )
    return provider
