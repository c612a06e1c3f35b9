"""What coaches and people say goes back to the spans that it is about, with who judged."""

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from mappa.cli.main import cli
from mappa.look.labelling import store_label
from mappa.look.tracers.judgements import read_judgements
from mappa.runs import RunReader
from mappa_core import InputError, RunError
from mappa_core.records import Label

REASON = "“7 * 48 = 326”, it says; the left side is 336."


@pytest.fixture(scope="module")
def judged_once(tmp_path_factory, phoenix_class):
    """A run of one trace of Phoenix, judged by `evidence`, with a label of a person."""
    root = tmp_path_factory.mktemp("judged")
    server = phoenix_class()
    address = f"phoenix://{server.place}/tickets?limit=1"
    result = CliRunner().invoke(cli, ["import", address, "--root", str(root), "--name", "tickets"])
    server.close()
    assert result.exit_code == 0, result.output
    folder = root / "tickets"
    assert CliRunner().invoke(cli, ["judge", str(folder), "--coach", "evidence"]).exit_code == 0
    with RunReader(folder) as reader:
        (row,) = reader.trajectories
        last = reader.trajectory(row.id).steps[-1].id
    store_label(
        folder,
        Label(kind="guilt", trajectory=row.id, step=last, agent="writer", reason="wrong product", labeller="ann"),
    )
    return folder


@pytest.fixture
def judged(judged_once, tmp_path):
    return Path(shutil.copytree(judged_once, tmp_path / "runs/tickets"))


def certificate(tmp_path, coach="evidence"):
    interval = {"mean": 0.6, "low": 0.5, "high": 0.7}
    figures = [
        {"task": "guilty agent", "stratum": "all", "of_all": interval},
        {"task": "x", "stratum": "s", "of_all": {}},
    ]
    document = {"evaluations": [{"runs": 184, "truth": False, "coaches": [{"name": coach, "figures": figures}]}]}
    path = tmp_path / "certificate.json"
    path.write_text(json.dumps(document))
    return path


def test_verdicts_become_annotations_of_the_very_spans(phoenix, invoke, judged, tmp_path):
    file = certificate(tmp_path)
    result = invoke("export", str(judged), "--to", f"phoenix://{phoenix.place}", "--certificate", str(file))
    assert result.exit_code == 0, result.output
    assert result.output.startswith(f"4 annotations on 1 trace of Phoenix at http://{phoenix.place}; 2 verdicts say")
    by_id = {span["context"]["span_id"]: span for span in phoenix.traces["a" * 32]}
    found = {(one.get("span_id", one.get("trace_id")), one["name"]): one for one in phoenix.annotations}
    (span,) = [one for one in phoenix.annotations if one["result"].get("score") == 1.0]
    assert by_id[by_id[span["span_id"]]["parent_id"]]["name"] == "writer"
    assert span["annotator_kind"] == "CODE" and span["identifier"] == "mappa"
    assert span["result"] == {"label": "writer", "score": 1.0, "explanation": REASON}
    known = span["metadata"]
    assert (known["judge"], known["judge_kind"], known["judge_package"]) == ("evidence", "CODE", "mappa-coach-evidence")
    assert known["judge_version"] and known["category"] == "miscalculation" and known["points"] == "0-10"
    assert known["certificate"]["right"]["guilty agent"]["mean"] == 0.6 and known["certificate"]["runs"] == 184
    whole = found["a" * 32, "evidence"]
    assert whole["result"] == {"label": "writer", "explanation": REASON}
    person = found[span["span_id"], "ann"]
    assert person["annotator_kind"] == "HUMAN"
    assert person["result"] == {"label": "writer", "explanation": "wrong product"}


def test_the_same_again_asks_to_replace_what_is_there(phoenix, invoke, judged):
    for _ in range(2):
        assert invoke("export", str(judged), "--to", f"phoenix://{phoenix.place}").exit_code == 0
    first, second = phoenix.annotations[:4], phoenix.annotations[4:]
    assert first == second


def test_spans_that_the_server_does_not_have_are_said(phoenix, invoke, judged):
    phoenix.broken = lambda path: (404, {}, b"Spans with IDs 1 do not exist.")
    result = invoke("export", str(judged), "--to", f"phoenix://{phoenix.place}")
    assert "status 404: Spans with IDs 1 do not exist." in str(result.exception)


def test_a_run_that_was_not_made_of_traces_has_nothing_to_go_back_to(invoke, tmp_path):
    log = tmp_path / "chat.jsonl"
    log.write_text(json.dumps({"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]}))
    assert invoke("import", str(log), "--name", "chat").exit_code == 0
    with pytest.raises(RunError, match="was not made of traces"):
        read_judgements(tmp_path / "runs/chat")


def test_a_certificate_of_another_coach_is_refused(judged, tmp_path):
    with pytest.raises(InputError, match=r"is about gemini, and .* was judged by evidence"):
        read_judgements(judged, certificate=certificate(tmp_path, "gemini"))
    file = tmp_path / "strange.json"
    file.write_text("[1, 2]")
    with pytest.raises(InputError, match="not a certificate of coaches"):
        read_judgements(judged, certificate=file)


@pytest.mark.parametrize(
    "words, says",
    [
        (["--to", "phoenix", "--out", "x"], "--out: verdicts go to a tracer whole"),
        (["--to", "phoenix", "--agent", "writer"], "--agent: verdicts go to a tracer whole"),
        (["--to", "phoenix", "--merged"], "are for models"),
        (["--to", "hf"], "name it with --out"),
        (["--to", "hf", "--out", "x", "--certificate", "c.json"], "--certificate goes with verdicts"),
        (["--to", "jaeger"], "choose hf, sft, dpo, kto, phoenix, langfuse, otel, or the URL"),
    ],
)
def test_options_that_do_not_go_together_are_said(invoke, words, says):
    result = invoke("export", "runs/x", *words)
    assert isinstance(result.exception, InputError) and says in str(result.exception)


def test_verdicts_become_scores_of_langfuse(langfuse, invoke, tmp_path):
    assert invoke("import", f"langfuse://{langfuse.place}", "--name", "tickets").exit_code == 0
    folder = str(tmp_path / "runs/tickets")
    assert invoke("judge", folder, "--coach", "evidence").exit_code == 0
    result = invoke("export", folder, "--to", f"langfuse://{langfuse.place}")
    assert result.exit_code == 0, result.output
    points, label, whole = (one for one in langfuse.scores if one["traceId"] == "t1")
    assert (points["observationId"], points["name"], points["value"], points["dataType"]) == (
        "t1-2", "evidence", 1.0, "NUMERIC",
    )  # fmt: skip
    assert (label["observationId"], label["name"], label["value"]) == ("t1-2", "evidence blames", "writer")
    assert (whole.get("observationId"), whole["name"], whole["value"]) == (None, "evidence blames", "writer")
    assert points["comment"] == REASON and points["metadata"]["judge_package"] == "mappa-coach-evidence"
    assert len({one["id"] for one in langfuse.scores}) == len(langfuse.scores) == 6
    before = [one["id"] for one in langfuse.scores]
    assert invoke("export", folder, "--to", f"langfuse://{langfuse.place}").exit_code == 0
    assert [one["id"] for one in langfuse.scores[6:]] == before
    assert {one["timestamp"] for one in langfuse.scores[6:]} == {one["timestamp"] for one in langfuse.scores[:6]}


def test_scores_that_langfuse_refuses_are_an_error(langfuse, invoke, judged):
    refused = json.dumps({"accepted": 5, "rejected": 1, "errors": [{"message": "no such trace"}]}).encode()
    langfuse.broken = lambda path: (207, {}, refused) if path.endswith("/scores") else None
    result = invoke("export", str(judged), "--to", f"langfuse://{langfuse.place}")
    assert "1 scores were refused, the first: message='no such trace'" in str(result.exception)


def test_verdicts_become_events_of_opentelemetry(collector, invoke, judged, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://{collector.place}")
    result = invoke("export", str(judged), "--to", "otel")
    assert result.exit_code == 0, result.output
    request = ExportLogsServiceRequest()
    request.ParseFromString(collector.bodies[0])
    records = request.resource_logs[0].scope_logs[0].log_records
    assert len(records) == 4 and {record.event_name for record in records} == {"gen_ai.evaluation.result"}
    assert {record.trace_id.hex() for record in records} == {"a" * 32}
    known = [{one.key: one.value for one in record.attributes} for record in records]
    (worst,) = [one for one in known if one.get("gen_ai.evaluation.score.value") and
                one["gen_ai.evaluation.score.value"].double_value == 1.0]  # fmt: skip
    assert worst["gen_ai.evaluation.name"].string_value == "evidence"
    assert worst["gen_ai.evaluation.score.label"].string_value == "writer"
    assert worst["gen_ai.evaluation.explanation"].string_value == REASON
    assert worst["mappa.judge_package"].string_value == "mappa-coach-evidence"
