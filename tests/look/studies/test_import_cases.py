"""Small logs of which an import once lost something: what is right stands beside each in `../shared/cases/import`."""

from __future__ import annotations

from pathlib import Path

import pytest

from mappa.look.importing import LogMapping, import_logs
from mappa.look.importing.chat_messages import BEHIND
from mappa.look.importing.content import ENCRYPTED
from mappa.runs import RunReader
from mappa.testing import load_plugins

CASES = Path(__file__).parents[4] / "shared" / "cases" / "import"
pytestmark = pytest.mark.skipif(not CASES.exists(), reason="needs ../shared/cases/import")
THOUGHT = "I should call the tool."
OSLO, ROME = ("get_weather", {"city": "Oslo"}), ("get_weather", {"city": "Rome"})
BIG = ("factor", {"n": 123456789012345678901234567890})
CODE = ("code_execution", {"code_blocks": [{"code": "print(1)", "packages": [], "language": "python"}]})
WEATHER = [(THOUGHT, "Let me check.", [OSLO], [("error", "error")]), ("The tool failed; I guess.", "5 C", [], [])]
RIGHT = {
    "openinference_parallel_calls/spans.jsonl": (
        [(None, "I look up both cities.", [OSLO, ROME], [("error: service down", "error"), ("21 C", "ok")]),
         (None, "Oslo 5 C, Rome 21 C.", [], [])],
        {},
    ),
    "openinference_parallel_calls/genai_spans.jsonl": ([(None, "I look up both.", [OSLO, ROME], [])], {}),
    "langfuse_langchain_tool_calls/trace.json": (
        [(None, "", [("search", {"q": "population Oslo"})], [("717710", "ok")]), (None, "717,710", [], [])], {},
    ),
    "langfuse_langchain_tool_calls/responses_items.json": ([("Both needed.", "", [OSLO, ROME], [])], {}),
    "langfuse_langchain_tool_calls/control_openai.json": ([(None, "", [("search", {"q": "x"})], [])], {}),
    "numbers_refuse_a_whole_log/inspect_nan_metric.json": (
        [("Two plus two is four.", "4", [], [])], {ENCRYPTED: 1},
    ),
    "numbers_refuse_a_whole_log/inspect_nan_score.json": (
        [("Two plus two is four.", "4", [], []), (None, "6", [], [])],
        {ENCRYPTED: 1, "scores match that are no finite number": 1},
    ),
    "numbers_refuse_a_whole_log/langchain_bigint.json": (
        [(None, "", [BIG], [("2*3", "ok")]), (None, "done", [], [])], {},
    ),
    "numbers_refuse_a_whole_log/messages_bigint.jsonl": (
        [(None, "", [BIG], [("2*3", "ok")]), (None, "done", [], [])], {},
    ),
    "inspect_redacted_reasoning/log.json": ([("Two plus two is four.", "4", [], [])], {ENCRYPTED: 1}),
    "inspect_redacted_reasoning/langchain_thinking.json": (WEATHER, {}),
    "content_blocks/lc.json": (WEATHER, {}),
    "content_blocks/anthropic.jsonl": (
        [(THOUGHT, "Let me check.", [OSLO], [("error: service down", "error")]), (None, "5 C.", [], [])], {},
    ),
    "autogen_events/result.json": (
        [(None, "Roses are red.", [], []), (None, "```python\nprint(1)\n```", [CODE], [("1", "ok")]),
         (None, "It printed 1.", [], [])],
        {BEHIND: 1},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_a_log_is_in_its_run_as_it_should_be(tmp_path: Path, name: str) -> None:
    made = import_logs(load_plugins(only=("look",)), [CASES / name], LogMapping(), root=tmp_path, name="run")
    (ledger,) = made.ledgers.values()
    with RunReader(made.folder) as reader:
        steps = [step for row in reader.trajectories for step in reader.trajectory(row.id).steps]
        correct = [row.outcome.get("correct") for row in reader.trajectories]
    found = [
        (
            step.reply.reasoning,
            step.reply.content,
            [(call.name, dict(call.arguments)) for call in step.reply.tool_calls],
            [(result.stdout, result.status) for result in step.results],
        )
        for step in steps
    ]
    assert (found, ledger.notes) == RIGHT[name]
    assert all(call.error is None for step in steps for call in step.reply.tool_calls)
    if name.endswith("nan_score.json"):
        assert correct == [1.0, None]
    if name.startswith("autogen"):
        assert made.counts.left_out["SelectorEvents"] == made.counts.left_out["UserInputRequestedEvents"] == 1


def test_every_case_is_held() -> None:
    assert {str(path.relative_to(CASES)) for path in CASES.glob("*/*.json*")} == set(RIGHT)
