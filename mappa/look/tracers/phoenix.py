"""Arize Phoenix, by its client `arize-phoenix-client`: spans come by the REST API, verdicts go as annotations."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from mappa.look.importing.openinference import KIND, nest
from mappa.look.tracers.address import TraceChoice
from mappa.look.tracers.judgements import Judgement
from mappa.look.tracers.tracer import (
    MAX_SPANS,
    MAX_TRACES,
    TIMEOUT_S,
    PulledTrace,
    TraceEntry,
    Tracer,
    check_span_count,
    import_client,
    open_http,
    server_errors,
)

LOCAL = "http://localhost:6006"
_SERVERS = ("PHOENIX_ENDPOINT", "PHOENIX_COLLECTOR_ENDPOINT")
_TAGS, _METADATA = "tag.tags", "metadata"
_SDK_KEYS = ("name", "context", "parent_id", "start_time", "end_time", "status_code", "status_message", "events")
_BATCH = 200
"""Annotations in a request."""
_IDENTIFIER = "mappa"
"""Of annotations: one of the same span, name and identifier replaces the earlier one."""


class PhoenixTracer(Tracer):
    """A project of a Phoenix server. `server` None: the one that the environment names, else that of this machine.
    Verdicts need no project: ids of spans are those of the server."""

    def __init__(self, server: str | None, project: str | None) -> None:
        client = import_client("phoenix.client", "phoenix")
        place = server or _find_server()
        key = os.environ.get("PHOENIX_API_KEY")
        self.name = f"Phoenix at {place}"
        self._project = project
        self._client = client.Client(
            http_client=open_http(place, {} if key is None else {"authorization": f"Bearer {key}"})
        )

    def list_traces(self, choice: TraceChoice) -> Iterator[TraceEntry]:
        with server_errors(self.name, "phoenix"):
            found = self._client.traces.get_traces(
                project_identifier=self._project,
                start_time=choice.since,
                end_time=choice.until,
                # The server cannot choose by tags, so that the newest of them may be anywhere.
                limit=MAX_TRACES if choice.limit is None or choice.tags else choice.limit,
                timeout=TIMEOUT_S,
            )
            entries = [
                TraceEntry(id=str(one["trace_id"]), stamp=f"{one['end_time']}/{one.get('token_count_total')}")
                for one in found
            ]
        yield from entries

    def read_trace(self, trace: str) -> PulledTrace:
        with server_errors(self.name, "phoenix"):
            spans = self._client.spans.get_spans(
                project_identifier=self._project, trace_ids=[trace], limit=MAX_SPANS + 1, timeout=TIMEOUT_S
            )
            check_span_count(spans, trace)
            return PulledTrace(
                spans=[_to_sdk_span(span) for span in spans],
                has_root=any(not span["parent_id"] for span in spans),
                last=max((datetime.fromisoformat(span["end_time"]).timestamp() for span in spans), default=0.0),
                tags=frozenset(str(tag) for span in spans for tag in span["attributes"].get(_TAGS) or ()),
            )

    def write(self, judgements: Sequence[Judgement]) -> None:
        spans = [_to_annotation(one, "span_id", one.span) for one in judgements if one.span is not None]
        traces = [_to_annotation(one, "trace_id", one.trace) for one in judgements if one.span is None]
        self._send(spans, lambda some: self._client.spans.log_span_annotations(span_annotations=some, sync=True))
        self._send(traces, lambda some: self._client.traces.log_trace_annotations(trace_annotations=some, sync=True))

    def _send(self, annotations: Sequence[Mapping[str, Any]], send: Callable[[Sequence[Any]], object]) -> None:
        for some in _batches(annotations):
            with server_errors(self.name, "phoenix"):
                send(some)


def _find_server() -> str:
    """The server of the environment. The client would also look for a file in the folders around, which may be of a
    repository of somebody else: a key must not go where that says."""
    named = next((place for name in _SERVERS if (place := os.environ.get(name))), LOCAL)
    return named.rstrip("/").removesuffix("/v1/traces")


def _batches(annotations: Sequence[Mapping[str, Any]]) -> Iterator[Sequence[Mapping[str, Any]]]:
    for start in range(0, len(annotations), _BATCH):
        yield annotations[start : start + _BATCH]


def _to_sdk_span(span: Mapping[str, Any]) -> dict[str, Any]:
    """A span of the REST API as an SDK prints it: there the kind is an attribute, and metadata one object."""
    known = span["attributes"]
    metadata = nest(known, f"{_METADATA}.")
    attributes = {
        **{name: value for name, value in known.items() if not name.startswith(f"{_METADATA}.")},
        KIND: span["span_kind"],
        **({_METADATA: metadata} if metadata else {}),
    }
    return {**{name: span.get(name) for name in _SDK_KEYS}, "attributes": attributes}


def _to_annotation(judgement: Judgement, key: str, value: str) -> dict[str, Any]:
    said = {"label": judgement.label, "score": judgement.score, "explanation": judgement.explanation or None}
    return {
        key: value,
        "name": judgement.judge.name,
        "annotator_kind": judgement.judge.kind,
        "result": {name: part for name, part in said.items() if part is not None},
        "metadata": dict(judgement.metadata),
        "identifier": _IDENTIFIER,
    }
