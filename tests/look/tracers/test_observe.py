"""`mappa observe` of a tracer's address, and of what comes over OTLP."""

import json
from datetime import datetime
from http.client import HTTPConnection
from types import SimpleNamespace

from mappa.look.cli import observe_log
from mappa.look.tracers.otlp_receiver import OtlpReceiver
from mappa.look.tracers.received_traces import ReceivedTraces
from mappa.runs import RunReader


def test_an_address_is_pulled_judged_and_shown_and_again_only_what_is_new(phoenix, invoke, tmp_path):
    address = f"phoenix://{phoenix.place}/tickets?limit=1"
    first = invoke("observe", address, "--name", "tickets", "--examples", "1")
    assert first.exit_code == 0, first.output
    assert "evidence: 4 verdicts on 1 new play" in first.stdout and "7 * 48 = 326" in first.stdout
    again = invoke("observe", address, "--name", "tickets")
    assert "pulled   0 traces, 1 were there" in again.stderr and "nothing new was written" in again.stdout
    sent = invoke("export", "runs/tickets", "--to", f"phoenix://{phoenix.place}")
    assert sent.exit_code == 0, sent.output
    assert {one["metadata"]["judge_package"] for one in phoenix.annotations} == {"mappa-coach-evidence"}


def test_spans_that_come_are_judged_until_the_user_ends_it(invoke, monkeypatch, tmp_path, phoenix):
    """The wait between two looks sends a trace, and ends the command when it was judged."""
    monkeypatch.setitem(ReceivedTraces.__init__.__kwdefaults__, "quiet_s", 0.0)
    urls, looks = [], []
    enter = OtlpReceiver.__enter__
    monkeypatch.setattr(OtlpReceiver, "__enter__", lambda self: (urls.append(self.url), enter(self))[1])

    def wait(_: float) -> None:
        looks.append(1)
        if len(looks) == 1:
            connection = HTTPConnection(urls[0].removeprefix("http://"), timeout=30)
            body = json.dumps(to_otlp(phoenix.traces["a" * 32]))
            connection.request("POST", "/v1/traces", body, {"Content-Type": "application/json"})
            assert connection.getresponse().status == 200
            connection.close()
        elif len(looks) > 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(observe_log, "time", SimpleNamespace(sleep=wait))
    result = invoke("observe", "--otlp", "0", "--name", "live")
    assert result.exit_code == 0, result.output
    assert "1 play of which no outcome is known; to blame: writer 1" in result.stdout
    with RunReader(tmp_path / "runs/live") as reader:
        (row,) = reader.trajectories
        assert [step.agent for step in reader.trajectory(row.id).steps] == ["planner", "clerk", "clerk", "writer"]


def test_a_port_goes_without_other_logs(invoke):
    result = invoke("observe", "team.jsonl", "--otlp", "0")
    assert "--otlp is a log of its own: leave out team.jsonl" in str(result.exception)


def to_otlp(spans):
    """Spans of Phoenix in the JSON form of OTLP."""

    def convert(span):
        values = {**span["attributes"], "openinference.span.kind": span["span_kind"]}
        node = values.get("metadata.langgraph_node")
        values["metadata"] = json.dumps({} if node is None else {"langgraph_node": node})
        texts = {key: value for key, value in values.items() if isinstance(value, str)}
        start, end = (datetime.fromisoformat(span[key]).timestamp() for key in ("start_time", "end_time"))
        return {
            "traceId": span["context"]["trace_id"],
            "spanId": span["context"]["span_id"],
            "name": span["name"],
            "startTimeUnixNano": str(round(start * 1e6) * 1000),
            "endTimeUnixNano": str(round(end * 1e6) * 1000),
            "attributes": [{"key": key, "value": {"stringValue": value}} for key, value in texts.items()],
            "status": {"code": 1},
            **({} if span["parent_id"] is None else {"parentSpanId": span["parent_id"]}),
        }

    return {"resourceSpans": [{"scopeSpans": [{"spans": [convert(span) for span in spans]}]}]}
