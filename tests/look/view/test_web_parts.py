"""What pages of the viewer compute: the graph of files, points against outcome, latency, pieces of a text, axes."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from mappa.look.view.chart import build_chart, build_fitted_chart
from mappa.look.view.prompt_histories import PromptChange, build_prompt_histories
from mappa.look.view.visible_text import show_invisible
from mappa.look.view.web.coach import measure_latencies, rank_agents
from mappa.look.view.web.lineage import build_lineage_graph
from mappa.look.view.web.rendering import template_environment
from mappa.look.view.web.trajectory import _pair_calls, split_fences
from mappa.runs import RunFolder, RunReader
from mappa.runs.rows import VerdictRow
from mappa_core import Breach, Completion, Message, Step, ToolCall, ToolResult, Verdict
from mappa_core.sandbox import FileChange


def step(position: int, agent: str, text: str = "", files: tuple[str, ...] = (), changes=(), breaches=()) -> Step:
    completion = Completion(text=text, prompt_tokens=None, tokens=None, logprobs=None, finish="stop")
    results = (ToolResult(tool="python", status="ok", files=tuple(changes)),) if changes else ()
    return Step(
        id=f"t/{position}", agent=agent, turn=0, position=position, policy="p", messages=(), files=files,
        reply=Message(role="assistant", content=text), completion=completion, results=results, breaches=tuple(breaches),
    )  # fmt: skip


def test_the_graph_says_who_made_what_who_named_it_and_what_was_missing() -> None:
    graph = build_lineage_graph(
        [
            step(0, "engineer", "I write a.csv", (), [FileChange(path="a.csv", kind="created", size=9)]),
            step(1, "engineer", "again", ("a.csv",), [FileChange(path="a.csv", kind="changed", size=12)]),
            step(
                2, "modeler", "read_csv('a.csv'), not xa.csv or a.csv2", ("a.csv",),
                breaches=[Breach(agent="modeler", kind="missing_input", path="clean.csv", detail="never made")],
            ),
            step(
                3, "analyst", "rm", ("a.csv",), [FileChange(path="a.csv", kind="deleted")],
                breaches=[Breach(agent="analyst", kind="broken_input", path="model.pkl", reason="format")],
            ),
        ]
    )  # fmt: skip
    assert graph is not None
    told = {row.path: [(mark.position, mark.event) for mark in row.marks] for row in graph.files}
    assert told == {
        "a.csv": [(0, "created"), (1, "changed"), (2, "named"), (3, "deleted")],
        "clean.csv": [(2, "missing")],
        "model.pkl": [(3, "broken")],
    }
    made, missing, _ = graph.files
    assert (made.maker, made.start, made.end) == ("engineer", graph.columns[0].x, graph.columns[3].x)
    assert (missing.maker, missing.start, missing.end) == (None, None, None)
    assert missing.marks[0].label == "modeler: missing input: never made"
    assert [column.hand_off for column in graph.columns] == [False, False, True, True]


def test_where_nothing_had_to_do_with_a_file_there_is_no_graph() -> None:
    assert build_lineage_graph([step(0, "solver", "2 + 2")]) is None and build_lineage_graph([]) is None


def test_a_name_is_whole_and_many_files_are_cut_and_counted() -> None:
    many = tuple(f"f{number}.txt" for number in range(60))
    graph = build_lineage_graph([step(0, "solver", "open f59.txt, f5.txt.bak and my-f7.txt", many)])
    assert graph is not None and graph.left_out == 20
    assert [row.path for row in graph.files if row.marks] == ["f59.txt"] and graph.files[0].path == "f59.txt"


def judged(score: float | None, correct: float | None, number: int, **changes: object) -> VerdictRow:
    given = {"step": f"t{number}/0", "id": "v", "coach": "judge", "seconds": float(number), "score": score}
    return VerdictRow(
        split="train", iteration=0, trajectory=f"t{number}", task=f"task{number}", stratum="all", agent="solver",
        position=0, outcome={} if correct is None else {"correct": correct},
        verdict=Verdict(**{**given, "status": "failed" if score is None else "scored", **changes}),  # type: ignore[arg-type]
    )  # fmt: skip


def test_points_against_outcome_by_hand() -> None:
    """Solved 8 and 5, not solved 5 and 1: of the four pairs three are won and one is a tie, 3.5 / 4."""
    known = [judged(8.0, 1.0, 0), judged(5.0, 1.0, 1), judged(5.0, 0.0, 2), judged(1.0, 0.0, 3)]
    left_out = [judged(None, 1.0, 4), judged(9.0, None, 5), judged(9.0, 1.0, 6, phase="after")]
    (found,) = rank_agents(known + left_out, "correct")
    assert (found.agent, found.verdicts, found.auc) == ("solver", 4, pytest.approx(0.875))
    assert [(one.points, one.outcome.mean, one.verdicts) for one in found.bins] == [
        (1.0, 0.0, 1), (5.0, 0.5, 2), (8.0, 1.0, 1),
    ]  # fmt: skip
    (same,) = rank_agents([judged(8.0, 1.0, 0), judged(2.0, 1.0, 1)], "correct")
    assert same.auc is None
    assert rank_agents(known, "other") == []


def test_latency_is_of_each_coach_and_phase() -> None:
    verdicts = [judged(5.0, 1.0, number) for number in range(101)] + [judged(None, 1.0, 7, coach="other")]
    judge, other = measure_latencies(verdicts)
    assert (judge.coach, judge.verdicts, judge.unscored) == ("judge", 101, 0)
    assert (judge.median, judge.p95, judge.max) == (50.0, 95.0, 100.0)
    assert (other.coach, other.unscored, other.max) == ("other", 1, 7.0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("only words", [("prose", "only words", "")]),
        (
            "a\n```python\nx = 1\n\ny = 2\n```\nb",
            [("prose", "a", ""), ("code", "x = 1\n\ny = 2", "python"), ("prose", "b", "")],
        ),
        ("```\nnever closed", [("code", "never closed", "")]),
        ("", []),
        ("```py\n```", []),
    ],
)
def test_a_text_is_prose_and_fenced_code(text: str, expected: list[tuple[str, str, str]]) -> None:
    assert [(piece.kind, piece.text, piece.label) for piece in split_fences(text)] == expected


def test_calls_without_a_recorded_answer_are_shown_with_all_arguments() -> None:
    done, open_ = ToolCall(name="delete", arguments={"path": "a"}, id="1"), ToolCall(name="hand_off", id="2")
    acted = replace(
        step(0, "writer", "I will delete a file now"),
        reply=Message(role="assistant", content="I will delete a file now", tool_calls=(done, open_)),
        calls=(done,), results=(ToolResult(tool="delete", status="ok"),),
    )  # fmt: skip
    first, second = _pair_calls(acted)
    assert (first.arguments, first.result) == ({"path": "a"}, acted.results[0])
    assert (second.call, second.arguments, second.result) == (open_, {}, None)


def test_arguments_of_calls_are_shown_without_escapes_of_json() -> None:
    called = Message(role="assistant", content="", tool_calls=(ToolCall(name="f", arguments={"q": "日<b>"}),))
    page = template_environment().get_template("web/prompt.html").render(messages=(called,))
    assert "日&lt;b&gt;" in page and "\\u" not in page


def test_axes_end_at_round_values_beyond_all_and_leave_out_what_is_not_finite() -> None:
    drawn = build_fitted_chart("", {"a": [(0.0, 0.013), (1.0, math.inf), (2.0, math.nan), (3.0, -0.004)]}, x_high=3.0)
    assert [tick.label for tick in drawn.y_ticks] == ["-0.005", "0", "0.005", "0.01", "0.015"]
    assert drawn.lines[0].path.count(",") == 2
    flat = build_fitted_chart("", {"a": [(0.0, 0.0)]}, x_high=1.0)
    assert flat.y_ticks[0].label == "0" and len(flat.y_ticks) > 1
    large = build_fitted_chart("", {"a": [(0.0, 1_800_000.0)]}, x_high=1.0)
    assert large.y_ticks[-1].label == "2 M"


def test_a_line_keeps_its_colour_where_another_has_no_points() -> None:
    drawn = build_chart("", {"a": [], "b": [(0.0, 0.5)]}, x_high=1.0, y_high=1.0, y_labels={})
    assert [(line.name, line.colour) for line in drawn.lines] == [("b", 1)]


def test_invisible_characters_are_shown_by_their_code_point() -> None:
    assert show_invisible("a\u202eb\x1b[0m\x00\ud800\ttab\nline") == "a‹U+202E›b‹U+001B›[0m‹U+0000›‹U+D800›\ttab\nline"
    made = template_environment().from_string("<b>{{ text }}</b>{{ [text] | join }}").render(text="<\u202e>")
    assert made == "<b>&lt;‹U+202E›&gt;</b>&lt;‹U+202E›&gt;"


def test_actions_of_one_agent_need_no_hand_off() -> None:
    first = step(0, "solver", "a", ("x.txt",))
    graph = build_lineage_graph([first, replace(first, position=1)])
    assert graph is not None and [column.hand_off for column in graph.columns] == [False, False]


def test_a_prompt_is_shown_as_it_is_used_beside_the_first(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, "run", plugin="p", recipe="r", config="seed: 1\n") as folder:
        for text in ("Solve.\nAnswer.", "Guess.", "Think.\nAnswer."):
            folder.store.record_event("prompt", agent="solver", version=text, text=text)
        folder.store.record_event("prompt", agent="critic", version="v", text="Doubt.")
    with RunReader(tmp_path / "run") as reader:
        solver, critic = build_prompt_histories(reader)
        assert list(reader.prompts["solver"]) == ["Solve.\nAnswer.", "Guess.", "Think.\nAnswer."]
    assert (solver.versions, solver.text) == (3, "Think.\nAnswer.")
    assert solver.diff == ("@@ -1,2 +1,2 @@", "-Solve.", "+Think.", " Answer.")
    assert (critic.versions, critic.diff) == (1, ())


def test_prompts_that_a_training_changed_are_shown_by_iteration(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, "run", plugin="p", recipe="r", config="seed: 1\n") as folder:
        for text in ("Solve.", "A candidate that was not kept.", "Solve.\nThink.", "Solve."):  # the last: a resume
            folder.store.record_event("prompt", agent="solver", version=text, text=text)
        for iteration, text in ((2, "Solve."), (4, "Solve.\nThink.")):
            folder.store.record_event("prompt_round", iteration=iteration, prompts={"solver": text}, changed=[])
    with RunReader(tmp_path / "run") as reader:
        (solver,) = build_prompt_histories(reader)
    assert (solver.text, solver.versions) == ("Solve.\nThink.", 3)
    assert solver.changes == (PromptChange(iteration=4, diff=("@@ -1 +1,2 @@", " Solve.", "+Think.")),)
