"""Examples of a warm start: the forms in which people have chat data, whose they are, and what is wrong with them."""

import json
import sys

import numpy as np
import pytest

from mappa.training.examples import Example, hold_out, read_examples
from mappa_core import ConfigError, Message
from mappa_core.codec import from_json, to_json

AGENTS = ("solver", "checker")
USER = {"role": "user", "content": "2 + 2?"}
REPLY = {"role": "assistant", "content": "4"}
PAIR = {"prompt": [USER], "completion": [REPLY]}
CALL = {"function": {"name": "add", "arguments": {}}}


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(path, only=()):
    return read_examples([path], AGENTS, only)


def test_a_pair_is_one_example_and_a_conversation_as_many_as_the_assistant_spoke(tmp_path):
    spoken = [{"role": "system", "content": "be brief"}, USER, REPLY, {"role": "user", "content": "3 + 3?"},
              {"role": "assistant", "content": "6"}]  # fmt: skip
    file = write(tmp_path / "solver.jsonl", PAIR, {"messages": spoken})
    kept = read(file).kept
    assert [(len(example.prompt), example.reply) for example in kept] == [(1, "4"), (2, "4"), (4, "6")]
    assert kept[0] == Example(agent="solver", prompt=(Message(role="user", content="2 + 2?"),), reply="4")


def test_whose_an_example_is(tmp_path):
    named = write(tmp_path / "data.jsonl", {**PAIR, "agent": "checker"}, {**PAIR, "agent": "solver"})
    assert [example.agent for example in read(named).kept] == ["checker", "solver"]
    only = read(named, only=["solver"])
    assert ([example.agent for example in only.kept], dict(only.left_out)) == (
        ["solver"],
        {("checker", "of an agent that was not named"): 1},
    )
    unnamed = write(tmp_path / "unnamed.jsonl", PAIR)
    assert read(unnamed, only=["checker"]).kept[0].agent == "checker"
    with pytest.raises(ConfigError, match=r"unnamed.jsonl:1: whose example is this\? Say so with --agent NAME"):
        read(unnamed)
    with pytest.raises(ConfigError, match=r"--agent chekcer: the team has no such agent. Did you mean checker\?"):
        read(unnamed, only=["chekcer"])


def test_parts_of_text_tools_and_earlier_calls_are_read(tmp_path):
    call = {"id": "a", "type": "function", "function": {"name": "add", "arguments": '{"x": 2}'}}
    tool = {"type": "function", "function": {"name": "add", "description": "adds", "parameters": {"type": "object"}}}
    prompt = [
        {"role": "user", "content": [{"type": "text", "text": "2 + "}, {"type": "text", "text": "2?"}]},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "4", "tool_call_id": "a"},
    ]
    row = {"prompt": prompt, "completion": [REPLY], "tools": json.dumps([tool])}
    example = read(write(tmp_path / "solver.jsonl", row)).kept[0]
    assert example.prompt[0].content == "2 + 2?"
    assert example.prompt[1].tool_calls[0].arguments == {"x": 2}
    assert example.prompt[2].tool_call_id == "a"
    assert (example.tools[0].name, example.tools[0].schema) == ("add", {"type": "object"})


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{", r":1: it is no JSON"),
        ("[" * 100_000, r":1: it is nested deeper than 64 levels"),
        ("[1]", r":1: an example is a JSON object, and this is a list"),
        ('{"text": "2 + 2 is 4"}', r"has `prompt` and `completion`, or `messages`; this has text"),
        ('{"prompt": "2 + 2?", "completion": "4"}', r":1: prompt: this is to be a list of messages"),
        (json.dumps({**PAIR, "agent": "solvr"}), r"`agent` is 'solvr', and the team has solver, checker"),
        (json.dumps({**PAIR, "completion": [REPLY, REPLY]}), r"completion is to be one message of the assistant"),
        (json.dumps({"messages": [USER]}), r"there is no message of the assistant that follows"),
        (json.dumps({"messages": [REPLY]}), r"there is no message of the assistant that follows"),
        (json.dumps({"messages": [{"role": "robot", "content": ""}]}), r"messages\[0\]: a message has a `role`"),
        (json.dumps({"messages": [{"role": "user", "content": [{"type": "image"}]}]}), "media are not learned from"),
        (json.dumps({**PAIR, "tools": [{"name": "add"}]}), r"a tool is of the form"),
        (json.dumps({**PAIR, "tools": 5}), r":1: `tools` is to be a list, or one as a text of JSON"),
        (json.dumps({**PAIR, "tools": "null"}), r":1: `tools` is to be a list"),
        (json.dumps({**PAIR, "tools": "{"}), r":1: tools: it is no JSON"),
        (json.dumps({**PAIR, "tools": [{"function": {"name": "add", "description": 5}}]}),
         r":1: tools\[0\].description: Expected str, got int"),
        (json.dumps({"messages": [{**USER, "name": 5}, REPLY]}), r":1: prompt\[0\].name: Expected str"),
        (json.dumps({"messages": [USER, {**REPLY, "tool_calls": 5}, USER, REPLY]}), r"\[1\].tool_calls: .*list"),
        (json.dumps({"messages": [USER, {**REPLY, "tool_calls": [{**CALL, "id": 7}]}, USER, REPLY]}),
         r":1: prompt\[1\].tool_calls\[0\].id: Expected str \| null, got int"),
    ],
)  # fmt: skip
def test_what_is_no_example_is_named_with_its_line(tmp_path, row, message):
    (tmp_path / "solver.jsonl").write_text(row + "\n")
    with pytest.raises(ConfigError, match=message):
        read(tmp_path / "solver.jsonl")


def test_replies_that_text_cannot_be_are_counted(tmp_path):
    replies = [{**REPLY, "tool_calls": [CALL]}, {**REPLY, "reasoning_content": "hm"}, {**REPLY, "content": " "}, REPLY]
    rows = [{"prompt": [USER], "completion": [reply]} for reply in replies]
    read_all = read(write(tmp_path / "solver.jsonl", *rows))
    assert len(read_all.kept) == 1
    assert dict(read_all.left_out) == {
        ("solver", "with native calls of tools"): 1,
        ("solver", "with reasoning apart"): 1,
        ("solver", "empty"): 1,
    }
    with pytest.raises(ConfigError, match=r"there is no example to learn from \(solver: 1 with reasoning apart\)"):
        read(write(tmp_path / "solver.jsonl", rows[1]))


def test_a_folder_without_a_card_is_named(tmp_path):
    with pytest.raises(ConfigError, match="no folder that `mappa export --to sft` wrote"):
        read(tmp_path)


def test_null_is_as_if_left_out(tmp_path):
    """As many who write rows by a program have it."""
    tool = {"function": {"name": "add", "description": None, "parameters": None}}
    call = {"function": {"name": "add", "arguments": None}, "id": None}
    messages = [USER, {**REPLY, "tool_calls": [call]}, {**USER, "name": None}, {**REPLY, "tool_calls": None}]
    example = read(write(tmp_path / "solver.jsonl", {"messages": messages, "tools": [tool]})).kept[0]
    assert (example.tools[0].description, example.tools[0].schema) == ("", {})
    assert example.prompt[1].tool_calls[0].arguments == {}
    assert from_json(Example, to_json(example)) == example


@pytest.mark.parametrize(
    ("card", "message"),
    [
        ("{", "dataset.json: it is no JSON"),
        ("{}", "dataset.json: `files` names no file of an agent"),
        ('{"files": ["solver.parquet"]}', "dataset.json: `files` names no file of an agent"),
        ('{"files": {"solver": "solver.parquet"}}', "dataset.json: `files` names no file of an agent"),
        ('{"files": {"solver": {"file": 3}}}', "dataset.json: `files` names no file of an agent"),
        ('{"files": {"solver": {"file": "../solver.jsonl"}}}', r"it names '../solver.jsonl', which is no file of it"),
        ('{"files": {"solver": {"file": "gone.parquet"}}}', "it names 'gone.parquet', which is no file of it"),
    ],
)
def test_a_folder_with_a_card_of_another_kind_is_named(tmp_path, card, message):
    write(tmp_path / "solver.jsonl", PAIR)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "dataset.json").write_text(card)
    with pytest.raises(ConfigError, match=message):
        read(tmp_path / "out")


def test_a_file_that_is_no_parquet_is_named(tmp_path, monkeypatch):
    (tmp_path / "solver.parquet").write_text("solver")
    with pytest.raises(ConfigError, match=r"solver.parquet: this is no Parquet"):
        read(tmp_path / "solver.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r'solver.parquet: Parquet needs pyarrow: pip install "mappa\[data\]"'):
        read(tmp_path / "solver.parquet")


def test_a_tenth_of_every_agents_prompts_is_held_out_and_equal_prompts_stay_together():
    random = np.random.default_rng(0)
    examples = [
        Example(agent=agent, prompt=(Message(role="user", content=str(number % 30)),), reply=str(number))
        for number in range(60)
        for agent in AGENTS
    ]
    learned, held_out = hold_out(examples)
    assert len(learned) + len(held_out) == 120
    assert [sum(example.agent == agent for example in held_out) for agent in AGENTS] == [6, 6]
    assert not {(example.agent, example.prompt) for example in held_out} & {
        (example.agent, example.prompt) for example in learned
    }
    shuffled = [examples[place] for place in random.permutation(len(examples))]
    assert set(hold_out(shuffled)[1]) == set(held_out)
    few = examples[:6]  # three prompts an agent
    assert hold_out(few) == (tuple(few), ())
