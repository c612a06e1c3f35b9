"""A trace per rollout, a span per action, call and verdict; the same ones whoever tells them."""

import json
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

pytest.importorskip("opentelemetry.sdk")
pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from mappa.cli import main
from mappa.runs import RunReader
from mappa.testing import TrackerContract
from mappa_core import ConfigError, Failure
from mappa_trackers.opentelemetry_spans import OtelTracker
from mappa_trackers.options import OtelOptions

END = 1_700_000_000.0


class TestContract(TrackerContract):
    def tracker(self):
        return OtelTracker(OtelOptions(file="spans.jsonl", content=True))


def tell(run, trajectory, options, *, closing="done"):
    tracker = OtelTracker(options)
    tracker.start(run)
    for step in trajectory.steps:
        tracker.action(trajectory.id, step, END - 1.0)
    for verdict in trajectory.verdicts:
        tracker.verdict(trajectory.id, verdict, END - 0.25)
    tracker.rollout("train", trajectory, END)
    tracker.close(closing)


def spans(run, trajectory, **options):
    path = run.folder / "spans.jsonl"
    path.unlink(missing_ok=True)
    tell(run, trajectory, OtelOptions(file="spans.jsonl", **options))
    return {span["name"]: span for span in map(json.loads, path.read_text().splitlines())}


def test_a_rollout_is_a_trace_whose_spans_hang_together(run, trajectory):
    found = spans(run, trajectory)
    assert sorted(found) == [
        "evaluate llm",
        "execute_tool calculator",
        "invoke_agent solver",
        "invoke_workflow mathchat/tiny",
    ]
    assert len({span["context"]["trace_id"] for span in found.values()}) == 1
    root, action = found["invoke_workflow mathchat/tiny"], found["invoke_agent solver"]
    assert root["parent_id"] is None and action["parent_id"] == root["context"]["span_id"]
    assert found["evaluate llm"]["parent_id"] == action["context"]["span_id"]
    assert found["execute_tool calculator"]["parent_id"] == action["context"]["span_id"]
    # Two seconds of sampling, one of the tool; the verdict took half a second; the rollout four.
    times = {name: (span["start_time"], span["end_time"]) for name, span in found.items()}
    assert times["invoke_agent solver"] == ("2023-11-14T22:13:16.000000Z", "2023-11-14T22:13:19.000000Z")
    assert times["execute_tool calculator"] == ("2023-11-14T22:13:18.000000Z", "2023-11-14T22:13:19.000000Z")
    assert times["evaluate llm"] == ("2023-11-14T22:13:19.250000Z", "2023-11-14T22:13:19.750000Z")
    assert times["invoke_workflow mathchat/tiny"] == ("2023-11-14T22:13:16.000000Z", "2023-11-14T22:13:20.000000Z")


def test_spans_have_attributes_of_actions_verdicts_and_outcomes(run, trajectory):
    found = {name: span["attributes"] for name, span in spans(run, trajectory).items()}
    action, verdict = found["invoke_agent solver"], found["evaluate llm"]
    assert action["gen_ai.operation.name"] == "invoke_agent" and action["gen_ai.agent.name"] == "solver"
    assert (action["gen_ai.usage.input_tokens"], action["gen_ai.usage.output_tokens"]) == (7, 3)
    assert action["gen_ai.response.finish_reasons"] == ["stop"] and action["gen_ai.request.temperature"] == 0.5
    assert (verdict["gen_ai.evaluation.score.value"], verdict["mappa.verdict.usd"]) == (7.5, 0.25)
    assert verdict["mappa.verdict.question"] == "q" * 32 and verdict["mappa.verdict.blame"] == "nobody"
    assert found["invoke_workflow mathchat/tiny"]["mappa.outcome.correct"] == 1.0
    assert not any(
        "messages" in key or "result" in key or "explanation" in key for span in found.values() for key in span
    )


def test_text_is_sent_where_that_is_asked_for_and_the_truth_never(run, trajectory):
    found = {name: span["attributes"] for name, span in spans(run, trajectory, content=True).items()}
    action = found["invoke_agent solver"]
    assert json.loads(action["gen_ai.input.messages"]) == [
        {"role": "system", "parts": [{"type": "text", "content": "Solve."}]},
        {"role": "user", "parts": [{"type": "text", "content": "2+2?"}]},
    ]
    assert json.loads(action["gen_ai.output.messages"]) == [
        {
            "role": "assistant",
            "parts": [{"type": "reasoning", "content": "hm"}, {"type": "text", "content": "calc"}],
            "finish_reason": "stop",
        }
    ]
    assert found["execute_tool calculator"]["gen_ai.tool.call.result"] == "4\n"
    assert found["evaluate llm"]["gen_ai.evaluation.explanation"] == "fine"
    assert "SECRET-TRUTH" not in (run.folder / "spans.jsonl").read_text()


def test_a_rollout_has_the_same_trace_again_and_another_in_another_run(run, trajectory):
    def ids(of):
        return {name: span["context"] for name, span in spans(of, trajectory).items()}

    once, again, other = ids(run), ids(run), ids(replace(run, id="f" * 32))
    assert once == again
    assert all(once[name]["trace_id"] != other[name]["trace_id"] for name in once)
    assert all(once[name]["span_id"] != other[name]["span_id"] for name in once)


def test_a_rollout_that_failed_and_a_verdict_that_was_not_given_are_errors(run, trajectory):
    failed = replace(
        trajectory,
        error=Failure(kind="ToolError", message="gone"),
        verdicts=(replace(trajectory.verdicts[0], status="failed", score=None, error="no answer"),),
    )
    found = spans(run, failed)
    assert found["invoke_workflow mathchat/tiny"]["status"] == {"status_code": "ERROR", "description": "ToolError"}
    assert found["evaluate llm"]["status"] == {"status_code": "ERROR", "description": "no answer"}
    assert "gen_ai.evaluation.score.value" not in found["evaluate llm"]["attributes"]
    assert found["invoke_agent solver"]["status"]["status_code"] == "UNSET"


@pytest.fixture
def collector():
    """A collector on this machine; `status` is what it answers."""

    class Taking(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            self.server.taken.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(self.server.status)
            self.end_headers()

        def log_message(self, *what): ...

    server = HTTPServer(("127.0.0.1", 0), Taking)
    server.taken, server.status = [], 200
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def test_a_collector_takes_the_spans(run, trajectory, collector):
    tell(run, trajectory, OtelOptions(endpoint=f"http://127.0.0.1:{collector.server_port}/v1/traces"))
    resources = [resource for request in collector.taken for resource in request.resource_spans]
    taken = [span for resource in resources for scope in resource.scope_spans for span in scope.spans]
    assert {span.name for span in taken} == set(spans(run, trajectory))
    about = {attribute.key: attribute.value.string_value for attribute in resources[0].resource.attributes}
    assert (about["service.name"], about["mappa.run"]) == ("mappa", run.id)


def test_a_collector_that_refuses_is_reported_when_the_run_ends(run, trajectory, collector):
    collector.status = 400
    with pytest.raises(RuntimeError, match="4 spans were refused"):
        tell(run, trajectory, OtelOptions(endpoint=f"http://127.0.0.1:{collector.server_port}/v1/traces"))


def test_what_was_written_can_be_imported(run, trajectory):
    spans(run, trajectory, content=True)
    root = run.folder.parent / "runs"
    assert main(["import", str(run.folder / "spans.jsonl"), "--root", str(root), "--name", "imported"]) == 0
    with RunReader(root / "imported") as reader:
        (row,) = reader.trajectories
        (step,) = reader.trajectory(row.id).steps
    assert (row.task, row.stratum, row.outcome) == ("t1", "sums", {"correct": 1.0})
    assert (step.agent, step.messages, step.reply) == (
        "solver",
        trajectory.steps[0].messages,
        trajectory.steps[0].reply,
    )
    assert (step.calls[0].name, step.calls[0].arguments) == ("calculator", {"text": "2+2"})
    assert (step.results[0].stdout, step.completion.usage.completion_tokens) == ("4\n", 3)


def test_an_endpoint_and_a_file_together_are_refused():
    with pytest.raises(ConfigError, match="endpoint and file are both set"):
        OtelTracker(OtelOptions(endpoint="http://x", file="y"))
