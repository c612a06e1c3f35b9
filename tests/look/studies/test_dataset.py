"""Recorded actions as data for fine-tuning: which are taken, what the columns hold, and what is read back."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pyarrow.parquet as parquet
import pytest
from click.testing import CliRunner
from datasets import load_dataset

from mappa.look.cli.export import command
from mappa.look.dataset import ExportRequest, Filters, export_dataset, select
from mappa.look.dataset.examples import (
    ActionExamples,
    CorrectionExamples,
    CorrectionPairs,
    LabelledExamples,
    PromptFormatter,
    SiblingPairs,
)
from mappa.look.dataset.parquet import ParquetSpool
from mappa.look.dataset.select import JudgedAction, select_actions
from mappa.look.importing import LogMapping, import_logs
from mappa.runs import RunFolder, RunReader
from mappa.testing import load_plugins
from mappa_core import (
    Completion,
    ConfigError,
    Failure,
    Message,
    RunError,
    Step,
    Task,
    ToolCall,
    ToolSpec,
    Trajectory,
    Verdict,
)

PYTHON = ToolSpec(name="python", description="Runs.", schema={"type": "object"})
SIGHT = PromptFormatter(tools={"python": PYTHON}, template_kwargs={"coder": {"enable_thinking": False}})
SCHEMA = (
    '[{"type": "function", "function": {"name": "python", "description": "Runs.", "parameters": {"type": "object"}}}]'
)


def step(name: str, text: str = "x", agent: str = "solver", *, prompt: str = "2+2?", finish: str = "stop", **given):
    fields = {
        "id": name,
        "agent": agent,
        "turn": 0,
        "position": 0,
        "policy": agent,
        "messages": (Message(role="user", content=prompt),),
        "reply": Message(role="assistant", content=text),
        "completion": Completion(
            text=text, prompt_tokens=None, tokens=np.zeros(1, np.int32), logprobs=None, finish=finish
        ),
        "strata": {"task": "sum"},
    }
    return Step(**(fields | given))


def verdict(of: str, score: float | None = 5.0, *, phase: str = "live", number: int = 0, **given) -> Verdict:
    made = Verdict.abstained("no") if score is None else Verdict.scored(score, "so", **given)
    return replace(made, step=of, id=f"{of}/{phase}/{number}", phase=phase, coach="c")


def action(name: str, score: float, text: str = "x", *, correction: str | None = None, **given) -> JudgedAction:
    return JudgedAction(
        step=step(name, text, **given), verdict=verdict(name, score, correction=correction), score=score
    )


def made(make, *actions: JudgedAction):
    left_out = Counter()
    return list(make(actions, left_out)), {key: count for key, count in left_out.items() if count}


USER = [{"role": "user", "content": "2+2?"}]


def said(text: str) -> list[dict]:
    return [{"role": "assistant", "content": text}]


def test_tools_that_a_workflow_answers_are_shown_beside_those_of_the_run():
    search = ToolSpec(name="search", description="Looks up.", schema={})
    ((_, example),), _ = made(ActionExamples(SIGHT), action("s", 9.0, tools=("python",), own_tools=(search,)))
    assert [tool["function"]["name"] for tool in json.loads(example["tools"])] == ["python", "search"]


def test_an_action_is_imitated_as_it_was_shown_and_said():
    thought = Message(role="assistant", content="4", reasoning="easy", tool_calls=(ToolCall(name="python"),))
    tool = Message(role="tool", content="4\n", name="python", tool_call_id="1")
    messages = (Message(role="system", content="Add."), Message(role="user", content="2+2?"), thought, tool)
    one = action("s", 9.0, agent="coder", messages=messages, reply=thought, tools=("python",))
    called = {"id": None, "type": "function", "function": {"name": "python", "arguments": {}}}
    reply = {"role": "assistant", "content": "4", "reasoning_content": "easy", "tool_calls": [called]}
    assert made(ActionExamples(SIGHT), one) == (
        [
            (
                "coder",
                {
                    "prompt": [
                        {"role": "system", "content": "Add."},
                        *USER,
                        reply,
                        {"role": "tool", "content": "4\n", "name": "python", "tool_call_id": "1"},
                    ],
                    "tools": SCHEMA,
                    "chat_template_kwargs": {"enable_thinking": False},
                    "completion": [reply],
                    "source": "s",
                    "score": 9.0,
                },
            )
        ],
        {},
    )


def test_corrections_stand_where_actions_stood():
    actions = action("a", 1.0, correction="4"), action("b", 2.0), action("c", 3.0, correction=" ")
    examples, left_out = made(CorrectionExamples(SIGHT), *actions)
    assert examples == [("solver", {"prompt": USER, "completion": said("4"), "source": "a", "score": 1.0})]
    assert left_out == {("solver", "no correction"): 2}
    pairs, left_out = made(CorrectionPairs(SIGHT), *actions)
    assert pairs == [("solver", {"prompt": USER, "chosen": said("4"), "rejected": said("x"), "source": "a"})]
    assert left_out == {("solver", "no correction"): 2}


def test_a_label_says_whether_the_score_is_good_enough():
    examples, _ = made(LabelledExamples(SIGHT, 5.0), action("a", 5.0), action("b", 4.99))
    assert [(one["label"], one["score"], one["completion"]) for _, one in examples] == [
        (True, 5.0, said("x")),
        (False, 4.99, said("x")),
    ]


def test_the_best_sibling_is_preferred_to_each_that_is_clearly_worse():
    group = [
        action("a", 6.0, "six"),
        action("b", 9.0, "nine"),
        action("c", 7.5, "close"),
        action("d", 9.0, "second"),
        action("e", 0.0, "nine"),
        action("f", 0.0, "other prompt", prompt="3+3?"),
        action("g", 0.0, "other agent", agent="coder"),
        action("h", 0.0, "other turn", turn=1),
    ]
    examples, left_out = made(SiblingPairs(SIGHT, 3.0), *group)
    assert examples == [
        (
            "solver",
            {"prompt": USER, "chosen": said("nine"), "rejected": said("six"), "source": "b > a", "gap": 3.0},
        )
    ]
    assert left_out == {("solver", "in no pair"): 5, ("coder", "in no pair"): 1}


@pytest.mark.parametrize(
    ("filters", "why"),
    [
        (Filters(), None),
        (Filters(min_score=5.0, max_score=5.0, blame=("nobody", "coder"), strata=(("task", "sum"),)), None),
        (Filters(phase="after"), "no verdict of phase after"),
        (Filters(min_score=5.1), "score below 5.1"),
        (Filters(max_score=4.9), "score above 4.9"),
        (Filters(blame=("solver",)), "blames another"),
        (Filters(strata=(("task", "sum"), ("plan", "scale"))), "another stratum"),
    ],
)
def test_every_filter_counts_its_exclusions(filters, why):
    judgement = verdict("s", 5.0, blame="coder") if filters.phase == "live" else None
    assert filters.rejection_reason(step("s"), judgement) == why


def test_actions_unfit_for_imitation_are_excluded():
    call = ToolCall(name="", error="the call is not JSON")
    broken = step("s", reply=Message(role="assistant", content="", tool_calls=(call,)))
    for cut in ("length", "abort"):
        assert Filters().rejection_reason(step("s", finish=cut), verdict("s")) == "cut off"
    assert Filters().rejection_reason(broken, verdict("s")) == "a call that cannot be read"
    assert Filters().rejection_reason(step("s"), verdict("s", None)) == "the verdict abstained"
    assert Filters().rejection_reason(step("s"), replace(verdict("s", None), status="failed")) == "the verdict failed"


def test_an_action_that_ends_with_a_call_is_whole():
    call = Message(role="assistant", content="", tool_calls=(ToolCall(name="python"),))
    assert Filters().rejection_reason(step("s", finish="tool", reply=call), verdict("s")) is None


@pytest.fixture
def recorded(tmp_path):
    """Two tasks twice in each of two iterations, begun out of order; every action has two live verdicts."""
    with RunFolder.create(tmp_path / "runs", "one", plugin="p", recipe="r", config="seed: 0\n") as folder:
        for iteration in (1, 0):
            for sample in (0, 1):
                for task in ("b", "a"):
                    name = f"train-{iteration}/{task}/{sample}"
                    known = Task(id=task, prompt="?")
                    folder.store.begin_trajectory("train", name, known, sample, iteration)
                    for position, agent in enumerate(("solver", "coder")):
                        one = step(f"{name}/{position}", agent=agent, position=position)
                        folder.store.record_step(name, one)
                        folder.store.record_verdict(verdict(one.id, 1.0))
                        folder.store.record_verdict(verdict(one.id, 5.0 + sample, number=1))
                    folder.store.end_trajectory(Trajectory(id=name, task=known, sample=sample, iteration=iteration))
    with RunReader(tmp_path / "runs" / "one") as reader:
        yield reader


def names(groups):
    return [[(one.step.id, one.score) for one in group] for group in groups]


def test_siblings_come_together_and_the_last_verdict_counts(recorded):
    left_out = Counter()
    groups = names(select_actions(recorded, Filters(agents=("coder",), iterations=(1, 1)), left_out))
    assert groups == [
        [("train-1/a/0/1", 5.0), ("train-1/a/1/1", 6.0)],
        [("train-1/b/0/1", 5.0), ("train-1/b/1/1", 6.0)],
    ]
    assert left_out == {}


def test_what_is_left_out_is_counted_by_agent_and_reason(recorded):
    left_out = Counter()
    groups = names(select_actions(recorded, Filters(min_score=5.5), left_out))
    assert [len(group) for group in groups] == [2, 2, 2, 2]
    assert left_out == {("solver", "score below 5.5"): 4, ("coder", "score below 5.5"): 4}


OUTGROWN = Failure(kind="PromptTooLong", message="80 > 64", quoted={"t/0": 80})
TOO_LONG_A_TASK = Failure(kind="PromptTooLong", message="80 > 64")
LOST = Failure(kind="ToolError", message="no sandbox")


@pytest.mark.parametrize(
    ("overflow", "split", "outcome", "error", "expected"),
    [
        ("unsolved", "train", {"correct": 1.0}, None, 5.0),
        ("unsolved", "train", {"correct": -1.0}, None, "outcome below 0"),
        ("unsolved", "train", {"correct": math.nan}, None, "no outcome"),
        ("unsolved", "train", {}, OUTGROWN, 0.0),
        ("unknown", "train", {}, OUTGROWN, "no outcome"),
        ("unsolved", "train", {}, TOO_LONG_A_TASK, "no outcome"),
        ("unknown", "eval", {}, OUTGROWN, 5.0),
        ("unsolved", "eval", {}, OUTGROWN, 5.0),
        ("unknown", "eval", {}, TOO_LONG_A_TASK, 5.0),
        ("unsolved", "eval", {}, LOST, "no outcome"),
    ],
)
def test_outcomes_and_points_count_as_the_run_counts_them(
    tmp_path, record_metric, overflow, split, outcome, error, expected
):
    """`expected` are the points of the action, or why it is left out."""
    config = f"credit: {{overflow: {overflow}}}\n"
    with RunFolder.create(tmp_path, "one", plugin="p", recipe="r", config=config) as folder:
        record_metric(folder.store, "correct")
        known = Task(id="a", prompt="?")
        folder.store.begin_trajectory(split, "t", known, 0, 0)
        folder.store.record_step("t", step("t/0"))
        folder.store.record_verdict(verdict("t/0"))
        folder.store.end_trajectory(Trajectory(id="t", task=known, sample=0, iteration=0, outcome=outcome, error=error))
    left_out = Counter()
    with RunReader(tmp_path / "one") as reader:
        groups = names(select_actions(reader, Filters(split=split, min_outcome=0.0), left_out))
    if isinstance(expected, str):
        assert (groups, left_out) == ([[]], {("solver", expected): 1})
    else:
        assert (groups, left_out) == ([[("t/0", expected)]], {})


def test_one_task_of_one_iteration_is_in_memory_at_a_time(recorded, monkeypatch):
    read = []
    monkeypatch.setattr(
        select.RunReader, "trajectory", lambda self, name, of=RunReader.trajectory: read.append(name) or of(self, name)
    )
    groups = select_actions(recorded, Filters(), Counter())
    next(groups)
    assert read == ["train-0/a/0", "train-0/a/1"]


def test_a_file_holds_the_parts_of_messages_that_occur(tmp_path):
    called = {"id": None, "type": "function", "function": {"name": "f", "arguments": {"a": [1, None], "b": "ü"}}}
    other = {"id": "2", "type": "function", "function": {"name": "f", "arguments": {"c": {}}}}
    first = {"prompt": USER, "completion": said("4"), "source": "a", "score": 1.0}
    second = {**first, "completion": [{**said("")[0], "tool_calls": [called, other]}], "tools": SCHEMA}
    spool = ParquetSpool(tmp_path / "solver.parquet")
    assert [spool.add(one) for one in (first, second, {**first, "source": "half \ud800"})] == [True, True, False]
    spool.close()
    assert [path.name for path in tmp_path.iterdir()] == ["solver.parquet"]
    plain, calling = load_dataset(
        "parquet", data_files=str(tmp_path / "solver.parquet"), split="train", cache_dir=tmp_path
    )
    assert plain == {**first, "completion": [{**said("4")[0], "tool_calls": None}], "tools": None}
    assert calling["tools"] == SCHEMA
    assert calling["completion"][0]["tool_calls"] == [called, other]
    assert calling["prompt"] == USER


def test_a_file_of_plain_messages_has_nothing_but_role_and_content(tmp_path):
    spool = ParquetSpool(tmp_path / "solver.parquet")
    spool.add({"prompt": USER, "completion": said("4")})
    spool.close()
    schema = parquet.read_schema(tmp_path / "solver.parquet")
    assert str(schema.field("prompt").type) == "list<element: struct<role: string, content: string>>"


@pytest.mark.parametrize(
    ("order", "words"),
    [
        (ExportRequest(form="sft", filters=Filters()), "--min-score 8"),
        (ExportRequest(form="sft", filters=Filters(min_score=1.0), threshold=1.0), "--threshold is for --to kto"),
        (ExportRequest(form="kto", filters=Filters()), "--threshold is for --to kto, and needed"),
        (ExportRequest(form="kto", filters=Filters(), source="corrections", threshold=1.0), "kto is made of actions"),
        (ExportRequest(form="dpo", filters=Filters()), "--gap is for pairs of siblings, and needed"),
        (ExportRequest(form="dpo", filters=Filters(), gap=0.0), "above 0"),
        (ExportRequest(form="dpo", filters=Filters(min_score=1.0), gap=1.0), "say nothing of pairs"),
        (ExportRequest(form="dpo", filters=Filters(), source="actions"), "dpo is made of siblings or corrections"),
    ],
)
def test_an_order_that_makes_no_sense_is_refused(order, words):
    with pytest.raises(ConfigError, match=words):
        order.example_maker(SIGHT)


async def test_a_run_becomes_a_folder_that_is_read_back(trained, registry, tmp_path):
    order = ExportRequest(form="kto", filters=Filters(), threshold=5.0)
    exported = export_dataset(trained, tmp_path / "data", order)
    card = json.loads((tmp_path / "data" / "dataset.json").read_text())
    assert {agent: one["examples"] for agent, one in card["files"].items()} == exported.examples
    assert (card["form"], card["source"], card["threshold"], card["run"]) == ("kto", "actions", 5.0, trained.name)
    with RunReader(trained) as reader:
        played = [reader.trajectory(row.id) for row in reader.trajectories.where(split="train")]
    for agent, count in exported.examples.items():
        rows = load_dataset(str(tmp_path / "data"), agent, split="train", cache_dir=str(tmp_path / "cache"))
        expected = {
            step.id: (step.messages[-1].content, step.reply.content, given.score, given.score >= 5.0)
            for trajectory in played
            for step in trajectory.steps
            for given in trajectory.verdicts
            if step.agent == agent and given.step == step.id and given.phase == "live" and given.score is not None
        }
        found = {
            row["source"]: (row["prompt"][-1]["content"], row["completion"][0]["content"], row["score"], row["label"])
            for row in rows
        }
        assert found == expected
        assert count == len(expected) > 0
    with pytest.raises(RunError, match="exists already"):
        export_dataset(trained, tmp_path / "data", order)


def test_names_of_agents_are_no_paths_and_who_has_no_example_is_told(tmp_path):
    agents = ("../evil", "a/b", "a_b", "quiet")
    call = {"id": "1", "type": "function", "function": {"name": "python", "arguments": "{}"}}
    said = [{"role": "assistant", "name": agent, "content": "x", "tool_calls": [call]} for agent in agents]
    (tmp_path / "log.jsonl").write_text(json.dumps({"messages": [*USER, *said]}) + "\n")
    registry = load_plugins(only=("look",))
    run = import_logs(registry, [tmp_path / "log.jsonl"], LogMapping(), root=tmp_path / "runs", name="run").folder
    with RunReader(run) as reader:
        steps = [step for row in reader.trajectories for step in reader.trajectory(row.id).steps]
    with RunFolder.open(run) as folder:
        for one in steps:
            folder.store.record_verdict(verdict(one.id, 1.0 if one.agent == "quiet" else 9.0))
    out = tmp_path / "deep" / "data"
    result = CliRunner().invoke(command, [str(run), "--to", "sft", "--min-score", "5", "--out", str(out)])
    assert result.exit_code == 0, result.exception
    files = {"../evil": "_._evil", "a/b": "a_b", "a_b": "a_b-2"}
    card = json.loads((out / "dataset.json").read_text())
    assert {agent: one["file"] for agent, one in card["files"].items()} == {
        agent: f"{name}.parquet" for agent, name in files.items()
    }
    assert {path.name for path in out.iterdir()} == {f"{name}.parquet" for name in files.values()} | {
        "dataset.json",
        "README.md",
    }
    assert [path.name for path in out.parent.iterdir()] == ["data"]
    for agent, name in files.items():
        (row,) = load_dataset(str(out), name, split="train", cache_dir=str(tmp_path / "cache"))
        assert [called["function"]["name"] for called in row["completion"][0]["tool_calls"]] == ["python"], agent
    assert f"a_b  {out / 'a_b-2'}.parquet  1 examples" in result.output
    assert "quiet  no examples  (left out: 1 score below 5)" in result.output
    # A log tells what its tools are called, and not what arguments they take.
    assert "tools" not in row and card["tools_without_schema"] == {"python": 3}
    assert "not in `tools`, as the run has no schema of them: python (3 actions)" in result.output


async def test_export_without_examples_writes_nothing(trained, registry, tmp_path):
    order = ExportRequest(form="sft", filters=Filters(iterations=(90, 99), min_score=1.0))
    with pytest.raises(RunError, match="nothing to export"):
        export_dataset(trained, tmp_path / "data", order)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--gap", "2"], "--gap: that is for data sets"),
        (["--to", "sft", "--merged"], "for models"),
        (["--to", "sft", "--min-score", "8", "--iterations", "9-3"], "write A-B"),
        (["--to", "sft", "--min-score", "11"], "0.0<=x<=10.0"),
        (["--to", "sft", "--min-score", "nan"], "--min-score nan: it must be 0 to 10 points"),
        (["--to", "sft", "--min-score", "8", "--max-score", "nan"], "--max-score nan: it must be 0 to 10 points"),
        (["--to", "sft", "--min-score", "8", "--min-outcome", "nan"], "--min-outcome nan: it must be a number"),
        (["--to", "kto", "--threshold", "nan"], "--threshold nan: it must be 0 to 10 points"),
    ],
)
def test_options_that_do_not_fit_are_input_errors(trained, tmp_path, words, message):
    result = CliRunner().invoke(command, [str(trained), "--out", str(tmp_path / "data"), *words])
    assert result.exit_code != 0
    assert message in f"{result.exception} {result.output}"


def test_actions_of_a_log_that_were_shown_nothing_are_left_out_and_counted(tmp_path):
    messages = [{"role": "assistant", "name": name, "content": name} for name in ("first", "second")]
    (tmp_path / "log.jsonl").write_text(json.dumps({"question": "q", "messages": messages}))
    mapping = LogMapping(prompt="question")
    registry = load_plugins(only=("look",))
    run = import_logs(registry, [tmp_path / "log.jsonl"], mapping, root=tmp_path / "runs", name="run").folder
    with RunReader(run) as reader:
        steps = [step for row in reader.trajectories for step in reader.trajectory(row.id).steps]
    with RunFolder.open(run) as folder:
        for one in steps:
            folder.store.record_verdict(verdict(one.id, 9.0))
    result = CliRunner().invoke(command, [str(run), "--to", "kto", "--threshold", "5", "--out", str(tmp_path / "data")])
    assert result.exit_code == 0, result.exception
    assert (
        "first  no examples  (left out: 1 no prompt)" in result.output and "second.parquet  1 examples" in result.output
    )
