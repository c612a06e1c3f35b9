"""Logs of every format with a value in them that nobody expects: imported, or one line and no run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from mappa.cli import main
from mappa.look.importing.documents import find_files
from mappa.look.importing.log_mapping import LogFormatError
from mappa.look.importing.spans import read_spans

USER, ASSISTANT = {"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}
TIMES = {"startTime": "2024-01-01T00:00:00Z", "endTime": "2024-01-01T00:00:01Z"}
SPANS = {
    "traceId": "aa",
    "spanId": "b",
    "name": "chat",
    "startTimeUnixNano": "1",
    "endTimeUnixNano": "2",
    "attributes": [
        {"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}},
        {
            "key": "gen_ai.input.messages",
            "value": {"stringValue": '[{"role": "user", "parts": [{"type": "text", "content": "x"}]}]'},
        },
        {"key": "gen_ai.output.messages", "value": {"stringValue": '[{"role": "assistant", "parts": []}]'}},
    ],
}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
LOGS: dict[str, Any] = {
    "messages": {
        "messages": [USER, {**ASSISTANT, "name": "p", "tool_calls": [CALL]}, {"role": "tool", "content": "z"}],
        "result": {"solved": 1},
        "label": {"agent": "p", "step": 1},
    },
    "spans": {"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {}, "spans": [SPANS]}]}]},
    "who-and-when": {
        "question": "q",
        "history": [{"content": "a", "role": "assistant", "name": "x"}, {"content": "b", "role": "user"}],
        "mistake_agent": "x",
        "mistake_step": "0",
        "ground_truth": "1",
        "is_correct": False,
    },
    "agent-process-bench": {
        "query_index": 1,
        "messages": [USER, ASSISTANT],
        "step_labels": {"1": -1},
        "final_label": -1,
    },
    "langfuse": [
        {
            "id": "t",
            "timestamp": "2024-01-01T00:00:00Z",
            "observations": [
                {
                    "id": "o",
                    "traceId": "t",
                    "type": "GENERATION",
                    "name": "p",
                    **TIMES,
                    "input": [USER],
                    "output": ASSISTANT,
                }
            ],
        }
    ],
    "atif": {
        "schema_version": "ATIF-v1.0",
        "agent": {"name": "a", "version": "1"},
        "steps": [
            {"step_id": 1, "source": "user", "message": "hi"},
            {"step_id": 2, "source": "agent", "message": "hey"},
        ],
    },
    "autogen": {
        "messages": [
            {"source": "user", "type": "TextMessage", "content": "x"},
            {"source": "p", "type": "TextMessage", "content": "y", "models_usage": {"completion_tokens": 2}},
        ]
    },
    "openai-agents": {
        "object": "trace.span",
        "trace_id": "t",
        "id": "i",
        "started_at": "2024-01-01T00:00:00Z",
        "ended_at": "2024-01-01T00:00:01Z",
        "span_data": {"type": "generation", "input": [USER], "output": [ASSISTANT], "model": "m"},
    },
    "inspect": {
        "version": 2,
        "eval": {"task": "t", "model": "m"},
        "samples": [
            {"id": 1, "epoch": 1, "input": "x", "messages": [USER, ASSISTANT], "scores": {"match": {"value": "C"}}}
        ],
    },
    "crewai": [
        {"timestamp": "2024-01-01 00:00:00", "task_name": "t", "task": "x", "agent": "a", "status": "started"},
        {
            "timestamp": "2024-01-01 00:00:01",
            "task_name": "t",
            "task": "x",
            "agent": "a",
            "status": "completed",
            "output": "y",
        },
    ],
}
SHIPPED = {
    path.name: json.loads(path.read_text())
    if path.suffix == ".json"
    else [json.loads(line) for line in path.read_text().splitlines()]
    for path in sorted(Path(__file__).with_name("logs").iterdir())
}
"""Logs that the frameworks wrote themselves."""
SAMPLES = LOGS | SHIPPED
HOSTILE = [
    *(None, True, 0, -1, 1e300, 10**400, "", "\0", "\u202e", "x" * 2_000, "9" * 5_000, "nan", "a: [b"),
    *([], {}, [[]], [None], [1, "a", {}], {"a": {}}, {"role": "assistant"}),
]


def places_of(value: Any, place: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    yield place
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places_of(inner, (*place, key))


def replaced(value: Any, place: tuple[str | int, ...], by: Any) -> Any:
    if not place:
        return by
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[place[0]] = replaced(value[place[0]], place[1:], by)
    return copy


def without(value: Any, place: tuple[str | int, ...]) -> Any:
    copy = dict(value) if isinstance(value, dict) else list(value)
    if len(place) == 1:
        del copy[place[0]]
    else:
        copy[place[0]] = without(value[place[0]], place[1:])
    return copy


@st.composite
def _logs(draw: st.DrawFn) -> tuple[str, bool, bytes]:
    """A sample, whether its format is named on the command line, and a file."""
    name = draw(st.sampled_from(sorted(SAMPLES)))
    place = draw(st.sampled_from(list(places_of(SAMPLES[name]))))
    if place and draw(st.booleans()):
        log = without(SAMPLES[name], place)
    else:
        log = replaced(SAMPLES[name], place, draw(st.sampled_from(HOSTILE)))
    data = json.dumps(log).encode()
    if draw(st.integers(0, 5)) == 0:
        at = draw(st.integers(0, len(data)))
        data = data[:at] + draw(st.binary(max_size=20)) + data[at if draw(st.booleans()) else len(data) :]
    return name, name in LOGS and draw(st.booleans()), data


def check_import(folder: Path, capsys: pytest.CaptureFixture[str], name: str, named: bool, data: bytes) -> int:
    """Import a file; returns the exit code."""
    log, runs = folder / "log.json", folder / "runs"
    log.write_bytes(data)
    labels = ["--outcome", "result.solved", "--guilty-agent", "label.agent", "--guilty-step", "label.step"]
    before = set(runs.iterdir()) if runs.exists() else set()
    code = main(
        [
            "import",
            str(log),
            "--root",
            str(runs),
            *(["--format", name] if named else []),
            *(labels * (name == "messages")),
        ]
    )
    error = capsys.readouterr().err
    assert code in (0, 2), error
    if code == 2:
        assert error.startswith("Error: ") and "Traceback" not in error
        assert (set(runs.iterdir()) if runs.exists() else set()) == before, "half a run"
    return code


@pytest.mark.parametrize("name", sorted(LOGS))
def test_undamaged_logs_are_imported(tmp_path, capsys, name):
    (tmp_path / "log.json").write_text(json.dumps(LOGS[name]))
    assert main(["import", str(tmp_path / "log.json"), "--root", str(tmp_path / "runs")]) == 0, capsys.readouterr().err
    assert f"from {name}" in capsys.readouterr().out


@pytest.mark.slow
@settings(max_examples=40, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(log=_logs())
def test_a_damaged_log_is_an_error_of_the_input(tmp_path, capsys, log):
    check_import(tmp_path, capsys, *log)


@pytest.mark.soak
def test_two_hundred_damaged_logs(tmp_path, capsys):
    codes: list[int] = []

    @settings(max_examples=200, derandomize=True, database=None, deadline=None, phases=[Phase.generate])
    @given(log=_logs())
    def check(log):
        codes.append(check_import(tmp_path, capsys, *log))

    check()
    with capsys.disabled():
        print(f"{len(codes)} of 200 damaged logs: {codes.count(2)} refused, {codes.count(0)} imported")
    assert len(codes) == 200


@pytest.mark.soak
@settings(max_examples=3_000, deadline=None, suppress_health_check=list(HealthCheck))
@given(log=_logs())
def test_a_damaged_log_of_thousands_is_an_error_of_the_input(tmp_path, capsys, log):
    check_import(tmp_path, capsys, *log)


@pytest.mark.parametrize(
    "log, said",
    [
        ("[]", "there is no entry in it"),
        (
            json.dumps(replaced(LOGS["messages"], ("messages", 1, "name"), "x" * 2_000)),
            "has 2,000 characters, and may have 200",
        ),
    ],
    ids=["empty", "name"],
)
def test_error_of_a_damaged_log_names_the_fault(tmp_path, capsys, log, said):
    (tmp_path / "log.json").write_text(log)
    assert main(["import", str(tmp_path / "log.json"), "--root", str(tmp_path / "runs")]) == 2
    assert said in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attributes", [{"key": "n", "value": {"intValue": "many"}}]),
        ("attributes", [{"key": "n", "value": {"intValue": None}}]),
        ("attributes", [{"key": "n", "value": {"arrayValue": None}}]),
        ("attributes", [{"key": "n", "value": {"arrayValue": {"values": 1}}}]),
        ("attributes", [{"key": "n", "value": {"kvlistValue": []}}]),
        ("endTimeUnixNano", "9" * 400),
    ],
)
def test_a_span_with_a_value_of_another_type_is_named(key, value):
    export = {"resourceSpans": [{"scopeSpans": [{"spans": [{**SPANS, key: value}]}]}]}
    with pytest.raises(LogFormatError, match=rf"resourceSpans\.0\.scopeSpans\.0\.spans\.0.*{key}"):
        read_spans(export, "")


def test_digits_in_names_that_make_no_number_have_their_order_too(tmp_path):
    names = ["1²2.jsonl", "1²10.jsonl"]
    for name in names:
        (tmp_path / name).touch()
    assert [path.name for path in find_files([tmp_path])] == names
