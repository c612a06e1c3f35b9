"""Logs as the frameworks really write them come in: who acted, what was said and called, and what was left out.

The files in `logs` were written by the libraries themselves (LangGraph 1.2, OpenAI's SDK and Agents SDK with their
OpenInference instrumentations, AutoGen 0.7, CrewAI 1.15, inspect_ai 0.3) against a local server, and shortened; those
of Harbor and Langfuse follow their published schemas.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pandas
import pytest

from mappa.look.importing import LogMapping, import_logs
from mappa.runs import RunReader
from mappa.testing import load_plugins
from mappa_core import InputError

LOGS = Path(__file__).parent / "logs"
QUESTION = "How heavy is the sun?"
TEAM = ["researcher", "researcher", "writer"]


def imported(tmp_path, *paths, **mapped):
    return import_logs(load_plugins(only=("look",)), list(paths), LogMapping(**mapped), root=tmp_path, name="run")


def trajectories(made):
    with RunReader(made.folder) as reader:
        return [reader.trajectory(row.id) for row in reader.trajectories]


CASES = {
    "openinference_langgraph.jsonl": ("spans", TEAM),
    "openinference_openai.jsonl": ("spans", TEAM),
    "openinference_agents_sdk.jsonl": ("spans", TEAM),
    "openai_agents.jsonl": ("openai-agents", ["researcher", "researcher"]),
    "langfuse.json": ("langfuse", ["researcher", "writer"]),
    "autogen_result.json": ("autogen", TEAM),
    "autogen_events.jsonl": ("autogen-events", TEAM),
    "crewai.json": ("crewai", ["researcher", "writer"]),
    "langgraph_state.json": ("langchain", TEAM),
    "langchain_messages.json": ("langchain", TEAM),
    "atif.json": ("atif", ["terminus", "terminus"]),
}


@pytest.mark.parametrize("name", CASES)
def test_agents_their_actions_and_calls_are_found_and_everything_is_counted(tmp_path, name):
    made = imported(tmp_path, LOGS / name)
    wanted, agents = CASES[name]
    (one,) = trajectories(made)
    assert (made.format, [step.agent for step in one.steps]) == (wanted, agents)
    assert one.task.prompt.strip() == QUESTION
    assert made.counts.entries == made.counts.actions + sum(made.counts.left_out.values())
    first, last = one.steps[0], one.steps[-1]
    if name == "crewai.json":
        assert first.reply.content == "Use 2e30 kg."
        return
    assert [(call.name, dict(call.arguments)) for call in first.calls] == [("search", {"q": "mass of the sun"})]
    assert [(result.status, result.stdout) for result in first.results] == [("ok", "2e30 kg")]
    assert "2e30 kg" in last.reply.content and not last.calls
    assert first.completion.usage is not None and first.completion.usage.completion_tokens == 7


def test_replies_without_their_text_are_counted_and_no_action(tmp_path):
    made = imported(tmp_path, LOGS / "openai_agents.jsonl")
    assert made.counts.left_out["replies whose text the log does not have"] == 3
    assert (made.trajectories, made.counts.without_action) == (1, 1)


def test_samples_of_inspect_have_their_target_and_score(tmp_path):
    made = imported(tmp_path, LOGS / "inspect.json")
    found = {trajectory.task.id: trajectory for trajectory in trajectories(made)}
    assert {name: one.outcome["correct"] for name, one in found.items()} == {"moon": 0.0, "sun": 1.0}
    sun = found["sun"]
    assert (sun.task.reference, sun.task.prompt, len(sun.steps)) == ("2e30", QUESTION, 2)
    assert sun.steps[0].results[0].stdout == "2e30 kg"
    document = json.loads((LOGS / "inspect.json").read_text())
    with zipfile.ZipFile(tmp_path / "log.eval", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("header.json", json.dumps({**document, "samples": None}))
        for sample in document["samples"]:
            archive.writestr(f"samples/{sample['id']}_epoch_1.json", json.dumps(sample))
    again = import_logs(load_plugins(only=("look",)), [tmp_path / "log.eval"], LogMapping(), root=tmp_path, name="2")
    assert again.agents == made.agents and again.trajectories == 2
    (tmp_path / "broken.eval").write_text("no zip")
    with pytest.raises(InputError, match="`inspect log convert --to json` makes one that can"):
        imported(tmp_path, tmp_path / "broken.eval")


def test_a_sample_that_ended_before_any_action_is_counted(tmp_path):
    document = json.loads((LOGS / "inspect.json").read_text())
    document["samples"][0]["messages"] = document["samples"][0]["messages"][:2]
    (tmp_path / "log.json").write_text(json.dumps(document))
    made = imported(tmp_path, tmp_path / "log.json")
    assert (made.trajectories, made.counts.without_action) == (1, 1)


def test_spans_as_phoenix_exports_them_are_the_same(tmp_path):
    """As its REST API answers, and as its data frame is written: columns with dots, lists nested, times and counts in
    numbers as pandas writes them."""
    rows = [json.loads(line) for line in (LOGS / "openinference_openai.jsonl").read_text().splitlines()]
    (tmp_path / "rest.json").write_text(
        json.dumps({"data": [{**row, "status_code": "OK"} for row in rows], "next_cursor": None})
    )
    frame = []
    for row in rows:
        flat = {f"context.{key}": value for key, value in row["context"].items()}
        flat |= {"name": row["name"], "parent_id": row["parent_id"], "status_code": "OK"}
        flat |= {"start_time": row["start_time"], "end_time": row["end_time"]}
        known = row["attributes"]
        flat |= {f"attributes.{key}": value for key, value in known.items() if "_messages." not in key}
        for kind in ("input", "output"):
            numbers = sorted({key.split(".")[2] for key in known if key.startswith(f"llm.{kind}_messages.")}, key=int)
            flat[f"attributes.llm.{kind}_messages"] = [
                nested(
                    {key.split(".", 3)[3]: known[key] for key in known if key.startswith(f"llm.{kind}_messages.{one}.")}
                )
                for one in numbers
            ] or None
        frame.append(flat)
    table = pandas.DataFrame(frame)
    for column in ("start_time", "end_time"):
        table[column] = pandas.to_datetime(table[column], format="ISO8601")
    table.set_index("context.span_id", drop=False).to_json(
        tmp_path / "frame.jsonl", orient="records", lines=True, date_format="epoch"
    )
    told = [
        [
            (step.agent, step.reply.content, [result.stdout for result in step.results], step.completion.usage)
            for step in trajectory.steps
        ]
        for name in ("rest.json", "frame.jsonl")
        for trajectory in trajectories(
            import_logs(load_plugins(only=("look",)), [tmp_path / name], LogMapping(), root=tmp_path, name=name[:4])
        )
    ]
    assert told[0] == told[1] and [agent for agent, *_ in told[0]] == TEAM and told[0][0][2] == ["2e30 kg"]


def nested(flat):
    """A message of the data frame: its tool calls are a list of objects whose keys have dots."""
    calls = {key: value for key, value in flat.items() if key.startswith("message.tool_calls.0.")}
    kept = {key: value for key, value in flat.items() if key not in calls}
    if calls:
        kept["message.tool_calls"] = [
            {key.removeprefix("message.tool_calls.0."): value for key, value in calls.items()}
        ]
    return kept


def test_an_attribute_that_is_named_says_who_acts(tmp_path):
    rows = [json.loads(line) for line in (LOGS / "openinference_openai.jsonl").read_text().splitlines()]
    for row in rows:
        row["attributes"].pop("openinference.span.kind", None) if row["name"] in ("researcher", "writer") else None
        row["attributes"] |= {"my.role": f"my {row['name']}"} if row["name"] in ("researcher", "writer") else {}
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = imported(tmp_path, tmp_path / "log.jsonl", agent_from="my.role")
    assert made.agents == {"my researcher": 2, "my writer": 1}


def test_messages_with_a_name_of_their_own_key(tmp_path):
    line = {
        "messages": [
            {"role": "user", "content": "2+2?"},
            {"role": "assistant", "metadata": {"by": "a"}, "content": "4"},
        ]
    }
    (tmp_path / "log.jsonl").write_text(json.dumps(line) + "\n")
    assert imported(tmp_path, tmp_path / "log.jsonl", agent_from="metadata.by").agents == {"a": 1}


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (
            [{"schema_version": "ATIF-v1.4", "steps": [{"source": "moon"}]}],
            "steps.0.source: 'moon' is none of user, agent",
        ),
        ([{"object": "trace.span", "id": "x", "trace_id": "t", "started_at": 7}], "started_at: not a time: 7"),
        ([{"traceId": "t", "startTime": "noon", "id": "x"}], "startTime: not a time: 'noon'"),
        ([{"object": "trace", "id": "t"}], "read as openai-agents, no entry in it is an action of a model"),
        ([{"eval": {}, "samples": [{"messages": []}]}], "samples.0: messages: no list of messages"),
    ],
)
def test_malformed_log_is_refused_with_its_place(tmp_path, rows, says):
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(InputError, match=says):
        imported(tmp_path, tmp_path / "log.jsonl")
