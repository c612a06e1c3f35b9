"""Traces are pulled by the real clients from servers that speak their wire, and become a run."""

import json
import sys
from datetime import UTC, datetime, timedelta

import pytest

from mappa.look.tracers import tracer
from mappa.look.tracers.phoenix import PhoenixTracer
from mappa.look.tracers.pull import pull_traces
from mappa.runs import RunReader
from mappa_core import InputError
from mappa_core.redaction import keep_environment

SPANS = "/v1/projects/tickets/spans"


def plays_of(folder):
    with RunReader(folder) as reader:
        return [reader.trajectory(row.id) for row in reader.trajectories]


def test_traces_of_phoenix_become_a_run_that_knows_their_spans(phoenix, invoke, tmp_path):
    result = invoke("import", f"phoenix://{phoenix.place}/tickets", "--name", "tickets")
    assert result.exit_code == 0, result.output
    assert "pulled   3 traces: runs/pulled/phoenix-tickets-127-0-0-1-" in result.stderr
    plays = plays_of(tmp_path / "runs/tickets")
    assert {play.task.meta["run"] for play in plays} == {"a" * 32, "b" * 32, "c" * 32}
    steps = plays[0].steps
    assert [step.agent for step in steps] == ["planner", "clerk", "clerk", "writer"]
    assert steps[1].results[0].stdout == '{"city": "Lyon", "price_eur": 48}'
    spans = {span["context"]["span_id"]: span for span in phoenix.traces["a" * 32]}
    assert [spans[identity]["span_kind"] for identity in plays[0].task.meta["spans"]] == ["LLM"] * 4
    assert [spans[spans[identity]["parent_id"]]["name"] for identity in plays[0].task.meta["spans"]] == [
        step.agent for step in steps
    ]


def test_what_is_there_is_not_pulled_again(phoenix, tmp_path):
    address = f"phoenix://{phoenix.place}/tickets"
    first = pull_traces(address, tmp_path)
    asked = phoenix.count(SPANS)
    again = pull_traces(address, tmp_path)
    assert (first.read, first.known, again.read, again.known) == (3, 0, 0, 3)
    assert phoenix.count(SPANS) == asked
    # One more arrives, and of another comes more.
    phoenix.traces["d" * 32] = [
        {**span, "context": {**span["context"], "trace_id": "d" * 32}} for span in phoenix.traces["a" * 32]
    ]
    phoenix.traces["b" * 32] = [*phoenix.traces["b" * 32], {**phoenix.traces["b" * 32][-1], "name": "late"}]
    later = pull_traces(address, tmp_path)
    assert (later.read, later.known) == (2, 2)
    assert len((later.folder / f"{'b' * 32}.jsonl").read_text().splitlines()) == 14


def test_a_pull_that_broke_off_goes_on_where_it_ended(phoenix, tmp_path):
    address = f"phoenix://{phoenix.place}/tickets"
    phoenix.broken = lambda path: (500, {}, b"oh") if path == SPANS and phoenix.count(SPANS) > 3 else None
    with pytest.raises(InputError, match="status 500: oh"):
        pull_traces(address, tmp_path)
    phoenix.broken = lambda path: None
    phoenix.asked.clear()
    pull = pull_traces(address, tmp_path)
    assert (pull.read, pull.known) == (2, 1)
    assert {query["trace_id"][0] for _, path, query, _ in phoenix.asked if path == SPANS} == {"b" * 32, "c" * 32}


def test_the_newest_are_chosen_by_limit_and_time(phoenix, tmp_path):
    pull = pull_traces(f"phoenix://{phoenix.place}/tickets?limit=2&since=2026-11-01", tmp_path)
    assert sorted(path.stem for path in pull.folder.glob("*.jsonl")) == ["a" * 32, "b" * 32]
    asked = next(query for _, path, query, _ in phoenix.asked if path.endswith("/traces"))
    assert asked["start_time"] == ["2026-11-01T00:00:00+00:00"]


def test_traces_are_chosen_by_tags_that_only_their_spans_have(phoenix, tmp_path):
    phoenix.traces["b" * 32][0]["attributes"]["tag.tags"] = ["prod", "eu"]
    pull = pull_traces(f"phoenix://{phoenix.place}/tickets?tag=prod&tag=eu&limit=1", tmp_path)
    assert [path.stem for path in pull.folder.glob("*.jsonl")] == ["b" * 32]
    with pytest.raises(InputError, match="no trace is there that was asked for"):
        pull_traces(f"phoenix://{phoenix.place}/tickets?tag=test", tmp_path)


def test_a_trace_that_goes_on_is_left_for_later(phoenix, tmp_path):
    spans = phoenix.traces["a" * 32]
    root = next(span for span in spans if span["parent_id"] is None)
    phoenix.traces = {"a" * 32: [span for span in spans if span is not root]}
    for span in phoenix.traces["a" * 32]:
        span["end_time"] = (datetime.now(UTC) - timedelta(seconds=5)).isoformat()
    address = f"phoenix://{phoenix.place}/tickets"
    with pytest.raises(InputError, match="1 have not ended yet"):
        pull_traces(address, tmp_path)
    # Its root lies with another service, and nothing more comes of it.
    for span in phoenix.traces["a" * 32]:
        span["end_time"] = "2026-11-01T00:00:00+00:00"
    assert pull_traces(address, tmp_path).read == 1


def test_a_key_of_the_environment_is_sent_and_not_kept(phoenix, tmp_path, monkeypatch):
    monkeypatch.setenv("PHOENIX_API_KEY", "phoenix-secret-0123456789")
    phoenix.traces["a" * 32][0]["attributes"]["llm.system"] = "phoenix-secret-0123456789"
    keep_environment()
    pull = pull_traces(f"phoenix://{phoenix.place}/tickets", tmp_path)
    assert phoenix.headers["authorization"] == "Bearer phoenix-secret-0123456789"
    assert all("phoenix-secret" not in path.read_text() for path in pull.folder.iterdir())


def test_the_server_of_the_environment_is_used_and_none_that_a_file_around_names(phoenix, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env.phoenix").write_text("PHOENIX_ENDPOINT=http://127.0.0.1:9\n")
    monkeypatch.setenv("PHOENIX_COLLECTOR_ENDPOINT", f"http://{phoenix.place}/v1/traces")
    assert pull_traces("phoenix:///tickets", tmp_path).read == 3
    monkeypatch.delenv("PHOENIX_COLLECTOR_ENDPOINT")
    assert PhoenixTracer(None, "tickets").name == "Phoenix at http://localhost:6006"


@pytest.mark.parametrize(
    "broken, says",
    [
        ((401, {}, b"{}"), "the server refused the key .status 401.: set PHOENIX_API_KEY"),
        ((404, {}, b"Project with name nope not found"), "status 404: Project with name nope not found"),
        ((302, {"Location": "http://127.0.0.1:9/"}, b""), "status 302"),
        ((200, {}, b"<html>"), "JSONDecodeError"),
        ((200, {}, b'{"data": [{"trace": 1}]}'), "KeyError: 'trace_id'"),
        ((200, {}, b'{"data": [{"trace_id": "../../x", "end_time": "t"}]}'), "is no id of a trace"),
        ((200, {"Content-Length": "999999999999"}, b"{"), "the reply has more than"),
        ((200, {"Content-Encoding": "gzip"}, b"x"), "is compressed, which was not asked for"),
    ],
)
def test_what_a_server_does_wrong_is_said_and_nothing_is_written(phoenix, tmp_path, broken, says):
    phoenix.broken = lambda path: broken if path.endswith("/traces") else None
    with pytest.raises(InputError, match=f"^Phoenix at http://{phoenix.place}.*{says}"):
        pull_traces(f"phoenix://{phoenix.place}/tickets", tmp_path)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_trace_without_end_is_refused(phoenix, tmp_path, monkeypatch):
    monkeypatch.setattr("mappa.look.tracers.phoenix.MAX_SPANS", 5)
    monkeypatch.setattr(tracer, "MAX_SPANS", 5)
    with pytest.raises(InputError, match="has more than 5 spans"):
        pull_traces(f"phoenix://{phoenix.place}/tickets", tmp_path)


def test_observations_of_langfuse_become_a_run(langfuse, invoke, tmp_path):
    result = invoke("import", f"langfuse://{langfuse.place}?tag=prod&until=2026-12-01", "--name", "tickets")
    assert result.exit_code == 0, result.output
    plays = plays_of(tmp_path / "runs/tickets")
    assert [[step.agent for step in play.steps] for play in plays] == [["planner", "writer"]] * 2
    assert plays[0].task.meta["spans"] == ["t1-1", "t1-2"]
    assert plays[0].steps[1].reply.content == "7 * 48 = 326, so they pay 326 euros."
    _, _, query, _ = langfuse.asked[0]
    assert [one["column"] for one in json.loads(query["filter"][0])] == ["isRootObservation", "startTime", "tags"]
    assert langfuse.headers["Authorization"].startswith("Basic ")


def test_langfuse_needs_keys_of_the_environment(monkeypatch, tmp_path):
    monkeypatch.delenv("LANGFUSE_SECRET_KEY", raising=False)
    with pytest.raises(InputError, match="set LANGFUSE_PUBLIC_KEY and LANGFUSE_SECRET_KEY"):
        pull_traces("langfuse://127.0.0.1:9", tmp_path)


def test_a_client_that_is_missing_is_named_with_its_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "phoenix.client", None)
    with pytest.raises(InputError, match=r'pip install "mappa\[phoenix\]"'):
        pull_traces("phoenix:///tickets", tmp_path)
