"""Spans are received over OTLP/HTTP, and traces become logs as they are complete."""

import gzip
import json
from http.client import HTTPConnection

import pytest
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from mappa.look.importing import LogMapping, import_logs
from mappa.look.importing.log_mapping import LogFormatError
from mappa.look.tracers import otlp_receiver, received_traces
from mappa.look.tracers.otlp_receiver import OtlpReceiver
from mappa.look.tracers.received_traces import QUIET_S, SETTLED_S, ReceivedTraces
from mappa.runs import RunReader
from mappa.testing import load_plugins
from mappa_core import ConfigError


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def traces(tmp_path, clock):
    return ReceivedTraces(tmp_path / "otlp", clock=clock)


@pytest.fixture
def receiver(traces):
    with OtlpReceiver(traces, port=0) as found:
        yield found


def span(trace="a" * 32, identity="1" * 16, parent=None, **attributes):
    """A span in the JSON form of OTLP."""
    kinds = [{"key": name, "value": {"stringValue": value}} for name, value in attributes.items()]
    return {
        "traceId": trace, "spanId": identity, "name": "chat", "startTimeUnixNano": "1000000000",
        "endTimeUnixNano": "2000000000", "attributes": kinds, **({} if parent is None else {"parentSpanId": parent}),
    }  # fmt: skip


def request(*spans):
    return {"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {"name": "team"}, "spans": list(spans)}]}]}


def post(receiver, body, **headers):
    connection = HTTPConnection(receiver.url.removeprefix("http://"), timeout=30)
    given = {"Content-Type": "application/json", **{name.replace("_", "-"): value for name, value in headers.items()}}
    connection.request("POST", "/v1/traces", body if isinstance(body, bytes) else json.dumps(body), given)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, content


def play(provider, question):
    """Two agents, in spans of the GenAI conventions."""
    tracer = provider.get_tracer("team")
    with tracer.start_as_current_span("invoke_workflow"):
        for name in ("planner", "writer"):
            said = {"role": "assistant", "parts": [{"type": "text", "content": f"{name} answers"}]}
            asked = {"role": "user", "parts": [{"type": "text", "content": question}]}
            attributes = {
                "gen_ai.operation.name": "chat",
                "gen_ai.agent.name": name,
                "gen_ai.usage.input_tokens": 5,
                "gen_ai.input.messages": json.dumps([asked]),
                "gen_ai.output.messages": json.dumps([said]),
            }
            with tracer.start_as_current_span("chat", attributes=attributes):
                pass


@pytest.mark.parametrize("compression", [Compression.NoCompression, Compression.Gzip])
def test_spans_of_the_real_exporter_become_plays(receiver, traces, clock, tmp_path, compression):
    provider = TracerProvider()
    exporter = OTLPSpanExporter(f"{receiver.url}/v1/traces", compression=compression)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    play(provider, "How heavy is the sun?")
    play(provider, "And the moon?")
    provider.shutdown()
    assert traces.settle() == []
    clock.now = QUIET_S
    logs = traces.settle()
    assert len(logs) == 2 and traces.settle() == []
    made = import_logs(load_plugins(only=("look",)), [tmp_path / "otlp"], LogMapping(), root=tmp_path, name="run")
    with RunReader(made.folder) as reader:
        plays = [reader.trajectory(row.id) for row in reader.trajectories]
    assert sorted(one.task.prompt for one in plays) == ["And the moon?", "How heavy is the sun?"]
    assert [step.agent for step in plays[0].steps] == ["planner", "writer"]
    assert plays[0].steps[0].completion.usage.prompt_tokens == 5
    assert {one.task.meta["run"] for one in plays} == {log.stem for log in logs}
    assert all(len(identity) == 16 for identity in plays[0].task.meta["spans"])


def test_json_is_taken_and_answered_in_json(receiver, traces):
    assert post(receiver, request(span())) == (200, b"{}")
    packed = gzip.compress(json.dumps(request(span(identity="2" * 16))).encode())
    assert post(receiver, packed, Content_Encoding="gzip") == (200, b"{}")
    (log,) = traces.settle(all_of_them=True)
    assert len(log.read_text().splitlines()) == 2


@pytest.mark.parametrize(
    "body, headers, status, says",
    [
        (request(span()), {"Content_Type": "text/plain"}, 415, b"content-type is neither"),
        (request(span()), {"Content_Encoding": "br"}, 415, b"content-encoding br is not gzip"),
        (b"x", {"Content_Encoding": "gzip"}, 400, b"not gzip"),
        (b"{", {}, 400, b"not JSON"),
        ([1], {}, 400, b"not an object with resourceSpans"),
        (b"\xff\xff", {"Content_Type": "application/x-protobuf"}, 400, b"not an export of traces"),
        ({"resourceSpans": [{"scopeSpans": 1}]}, {}, 400, b"not spans: resourceSpans.0.scopeSpans: not a list"),
        (request({**span(), "traceId": 5}), {}, 400, b"not an id: 5"),
        (request(span()), {"Host": "evil.example"}, 400, b"Invalid host"),
    ],
)
def test_what_is_no_request_is_refused_and_nothing_is_kept(receiver, tmp_path, body, headers, status, says):
    answer = post(receiver, body, **headers)
    assert answer[0] == status and says in answer[1]
    assert list((tmp_path / "otlp").iterdir()) == []


def test_a_request_is_bounded_before_and_after_it_is_unpacked(receiver, monkeypatch):
    monkeypatch.setattr(otlp_receiver, "MAX_BODY_BYTES", 10_000)
    assert post(receiver, b" " * 10_001)[0] == 413
    bomb = gzip.compress(b" " * 1_000_000)
    assert len(bomb) < 10_000
    assert post(receiver, bomb, Content_Encoding="gzip") == (413, b"the request unpacks to more than 10,000 bytes")


def test_spans_that_are_refused_are_counted_in_the_answer(receiver, traces, monkeypatch):
    monkeypatch.setattr(received_traces, "MAX_OPEN", 1)
    status, content = post(receiver, request(span(), span("b" * 32), span("short")))
    assert status == 200
    said = json.loads(content)["partialSuccess"]
    assert said["rejectedSpans"] == "2"
    assert said["errorMessage"] == "1 traces have begun and not ended; the id of the trace has not 16 bytes"
    assert [log.stem for log in traces.settle(all_of_them=True)] == ["a" * 32]


def test_the_answer_in_protobuf_counts_what_is_refused():
    answer = otlp_receiver._answer({"too many": 3}, "application/x-protobuf")
    said = ExportTraceServiceResponse.FromString(answer.body).partial_success
    assert (said.rejected_spans, said.error_message) == (3, "too many")


def test_a_trace_is_complete_when_its_root_has_ended_and_nothing_more_comes(traces, clock):
    traces.add(request(span(parent="9" * 16)))
    clock.now = QUIET_S + 1
    assert traces.settle() == []
    traces.add(request(span(identity="9" * 16)))
    clock.now += QUIET_S - 1
    traces.add(request(span(identity="8" * 16, parent="9" * 16)))
    clock.now += QUIET_S - 1
    assert traces.settle() == []
    clock.now += 1
    assert [log.name for log in traces.settle()] == [f"{'a' * 32}.jsonl"]


def test_a_trace_whose_root_lies_elsewhere_is_complete_in_the_end(traces, clock):
    traces.add(request(span(parent="9" * 16)))
    assert traces.settle(all_of_them=True) == []
    clock.now = SETTLED_S
    assert len(traces.settle()) == 1


def test_spans_that_were_confirmed_outlive_the_process(traces, tmp_path):
    traces.add(request(span(parent="9" * 16)))
    clock = Clock()
    again = ReceivedTraces(tmp_path / "otlp", clock=clock)
    again.add(request(span(identity="9" * 16)))
    clock.now = QUIET_S
    (log,) = again.settle()
    assert len(log.read_text().splitlines()) == 2


def test_a_span_that_comes_late_is_kept_with_its_trace(traces):
    traces.add(request(span()))
    (log,) = traces.settle(all_of_them=True)
    assert traces.add(request(span(identity="2" * 16))) == {}
    assert len(log.read_text().splitlines()) == 2 and traces.settle(all_of_them=True) == []


def test_a_trace_is_bounded(traces, monkeypatch):
    monkeypatch.setattr(received_traces, "MAX_SPANS", 2)
    assert traces.add(request(span(), span(identity="2" * 16))) == {}
    assert list(traces.add(request(span(identity="3" * 16))).values()) == [1]


def test_nothing_of_a_request_is_added_where_a_part_is_invalid(traces, tmp_path):
    with pytest.raises(LogFormatError):
        traces.add(request(span(), {**span(), "startTimeUnixNano": "soon"}))
    assert list((tmp_path / "otlp").iterdir()) == []


def test_a_port_that_is_taken_is_said(receiver, traces):
    port = int(receiver.url.rpartition(":")[2])
    with pytest.raises(ConfigError, match=f"--otlp {port}: Address already in use"):
        OtlpReceiver(traces, port=port)
