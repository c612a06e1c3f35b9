"""Who acts when, sees what and hands on what; how it is graded, and what a coach is told of the truth."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import pytest_asyncio

from mappa.testing import WorkflowContract, play
from mappa_core import (
    Coach,
    Completion,
    ConfigError,
    Message,
    Scene,
    Step,
    Task,
    TaskError,
    Tool,
    ToolCall,
    ToolError,
    Trajectory,
    Verdict,
)
from mappa_dsbench.grading.truth import load_truth
from mappa_dsbench.options import TeamOptions
from mappa_dsbench.roles import ANALYST, DATA_ENGINEER, MODELER, ROLES
from mappa_dsbench.table import problem_of_task
from mappa_dsbench.truth_for_coach import describe_truth
from mappa_dsbench.workflow import DSBench, says_done
from mappa_sandbox.options import PythonOptions
from mappa_sandbox.tool import PythonTool

from .tables import Made, made, with_reference_score

pytestmark = pytest.mark.asyncio(loop_scope="module")
PRELOAD = ["numpy", "pandas", "joblib", "scipy.sparse", "sklearn.linear_model", "sklearn.dummy"]


def code(*lines: str, done: bool = True) -> str:
    text = "\n".join(("import pandas as pd", *lines))
    return f"```python\n{text}\n```" + ("\nDONE" if done else "")


TABLES = (
    "train, test = pd.read_csv('train.csv'), pd.read_csv('test.csv')",
    "middle = train['size'].median()",
    "x, t = ({'age': one.age, 'size': one['size'].fillna(middle)} for one in (train, test))",
)
SAVED = (
    "pd.DataFrame(x).to_pickle('X_train.pkl')",
    "train.ink.to_pickle('y_train.pkl')",
    "pd.DataFrame(t).to_pickle('X_test.pkl')",
)
ENGINEER = code(*TABLES, *SAVED)
FIT = "model.fit(pd.read_pickle('X_train.pkl'), pd.read_pickle('y_train.pkl'))"
LOGISTIC = "from sklearn.linear_model import LogisticRegression as Model"
RIDGE = "from sklearn.linear_model import Ridge as Model"
MODEL = code(LOGISTIC, "model = Model(max_iter=500)", FIT, "pd.to_pickle(model, 'model.pkl')")
PREDICT = "ink = pd.read_pickle('model.pkl').predict(pd.read_pickle('X_test.pkl'))"
HAND_IN = "pd.DataFrame({'pen_id': pd.read_csv('test.csv').pen_id, 'ink': ink}).to_csv('submission.csv', index=False)"
ANALYSIS = code(PREDICT, HAND_IN)
ALL = (ENGINEER, MODEL, ANALYSIS)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def python() -> AsyncIterator[PythonTool]:
    tool = PythonTool(PythonOptions(workers=1, preload=PRELOAD))
    yield tool
    await tool.close()


@pytest.fixture(scope="module")
def pens(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return made(tmp_path_factory.mktemp("pens") / "task", "accuracy")


async def played(
    python: Tool, task: Task, replies: Sequence[str], coach: Coach | None = None, **options: object
) -> Trajectory:
    team = DSBench(TeamOptions(**options))  # type: ignore[arg-type]
    found = await play(
        team, task, replies, tools={"python": python}, coach=coach, reference_for=[] if coach is None else list(ROLES)
    )
    assert found.error is None, found.error
    return found


class TestContract(WorkflowContract):
    replies = ALL

    @pytest.fixture(autouse=True)
    def _given(self, pens: Made, python: PythonTool) -> None:
        self.task = pens.task
        self.python = python

    def workflow(self) -> DSBench:
        return DSBench(TeamOptions(turns=2))

    def tools(self) -> Mapping[str, Tool]:
        return {"python": self.python}


async def test_three_agents_hand_on_files_until_a_submission_is_graded(python: PythonTool, pens: Made) -> None:
    trajectory = await played(python, pens.task, ALL)
    assert [(step.agent, step.turn) for step in trajectory.steps] == [(agent, 0) for agent in ROLES]
    assert all(step.tools == ("python",) and not step.breaches for step in trajectory.steps)
    assert all(step.inspection is not None and step.inspection.over for step in trajectory.steps)
    outcome = trajectory.outcome
    assert outcome["success"] == 1.0 and 0.3 < outcome["fair_dummy"] <= 1 and outcome["raw"] > 0.6
    assert set(DSBench.figures) <= set(outcome)


async def test_an_agent_is_told_what_is_missing_and_goes_on(python: PythonTool, pens: Made) -> None:
    forgot = code(*TABLES, *SAVED[:2])
    trajectory = await played(python, pens.task, (forgot, code(*TABLES, SAVED[2]), MODEL, ANALYSIS))
    first, again, *_ = trajectory.steps
    assert (again.agent, again.turn) == (DATA_ENGINEER, 1)
    opening, own, told = again.messages
    assert opening == first.messages[0] and own == first.reply
    assert "`X_test.pkl` is missing" in told.content
    assert not first.breaches and not again.breaches
    assert trajectory.outcome["success"] == 1.0


async def test_an_agent_that_is_done_too_early_is_told_what_is_broken(python: PythonTool, pens: Made) -> None:
    gaps = code(*TABLES[:2], "x, t = ({'age': one.age, 'size': one['size']} for one in (train, test))", *SAVED)
    trajectory = await played(python, pens.task, (gaps, ENGINEER, MODEL, ANALYSIS))
    first, again, *_ = trajectory.steps
    assert again.agent == DATA_ENGINEER
    assert "`X_train.pkl` is there, but cannot be used: not_finite" in again.messages[2].content
    assert {(breach.kind, breach.path, breach.reason) for breach in first.breaches} == {
        ("broken_output", "X_train.pkl", "not_finite"),
        ("broken_output", "X_test.pkl", "not_finite"),
    }


async def test_an_agent_that_does_not_say_that_it_is_done_goes_on(python: PythonTool, pens: Made) -> None:
    silent = ENGINEER.removesuffix("DONE")
    trajectory = await played(python, pens.task, (silent, "All is there.", MODEL, ANALYSIS))
    assert [step.agent for step in trajectory.steps] == [DATA_ENGINEER, DATA_ENGINEER, MODELER, ANALYST]
    looked = [step.inspection.facts["probed"] for step in trajectory.steps if step.inspection is not None]
    assert looked == [False, True, True, True]


async def test_breach_is_recorded_on_the_steps_of_agents_that_need_the_file(python: PythonTool, pens: Made) -> None:
    shifted = code(*TABLES, *SAVED[:2], "pd.DataFrame(t).drop(columns='size').to_pickle('X_test.pkl')")
    trajectory = await played(python, pens.task, (shifted, MODEL, ANALYSIS), turns=1)
    engineer, modeler, analyst = trajectory.steps
    assert [(breach.kind, breach.path, breach.reason) for breach in engineer.breaches] == [
        ("broken_output", "X_test.pkl", "columns")
    ]
    assert [(breach.kind, breach.path) for breach in modeler.breaches] == [("broken_input", "X_test.pkl")]
    assert [(breach.kind, breach.path) for breach in analyst.breaches] == [
        ("missing_output", "submission.csv"),
        ("broken_input", "X_test.pkl"),
    ]
    assert trajectory.outcome["success"] == 0.0 and trajectory.outcome["rejected_no_file"] == 1.0


async def test_missing_files_are_breaches_of_agents_that_need_or_make_them(python: PythonTool, pens: Made) -> None:
    trajectory = await played(python, pens.task, ("No.", "No.", "No."), turns=1)
    assert [[breach.kind for breach in step.breaches] for step in trajectory.steps] == [
        ["missing_output"] * 3,
        ["missing_input"] * 3 + ["missing_output"],
        ["missing_input"] * 2 + ["missing_output"],
    ]


@pytest.mark.parametrize(("context", "seen"), [("full", True), ("partial", False)])
async def test_modeler_and_analyst_see_earlier_words_by_the_setting_context(
    python: PythonTool, pens: Made, context: str, seen: bool
) -> None:
    said = ("Gaps are filled.\n" + ENGINEER, "A plain model.\n" + MODEL, ANALYSIS)
    trajectory = await played(python, pens.task, said, context=context)
    engineer, modeler, analyst = (step.messages[0].content for step in trajectory.steps)
    assert (
        pens.task.prompt in engineer
        and "`train.csv`" in engineer
        and "X_train.pkl`," not in engineer.split("# Your part")[0]
    )
    assert "Gaps are filled." in modeler and "`X_train.pkl`" in modeler
    assert "A plain model." in analyst and ("Gaps are filled." in analyst) is seen


@pytest.mark.parametrize(
    ("text", "done"),
    [
        (ENGINEER, True),
        (ENGINEER.removesuffix("DONE"), False),
        ("DONE\n```python\nprint(1)\n```", True),
        ("```python\nprint(1)\nDONE\n```", False),
        ("```python\nprint(1)\n```\nNot DONE yet", False),
        ("````python\n```\nDONE\n````", False),
        ("```python\nprint(1)\nDONE", False),
    ],
)
async def test_action_with_calls_is_done_only_if_its_text_says_so(text: str, done: bool) -> None:
    assert says_done(action(text, calls=True)) is done
    assert says_done(action(text, calls=False))


def action(text: str, *, calls: bool) -> Step:
    return Step(
        id="0",
        agent=ANALYST,
        turn=0,
        position=0,
        policy="x",
        messages=(),
        reply=Message(role="assistant", content=text),
        completion=Completion(text=text, prompt_tokens=None, tokens=None, logprobs=None, finish="stop"),
        calls=(ToolCall(name="python"),) if calls else (),
    )


@pytest.mark.parametrize("wrong", [{"turns": 0}, {"output_chars": 5}])
async def test_options_that_make_no_sense_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        TeamOptions(**wrong).check()  # type: ignore[arg-type]


async def test_prompts_that_are_missing_are_refused() -> None:
    with pytest.raises(ConfigError, match="prompts"):
        DSBench(TeamOptions(prompts="none"))


async def test_missing_answers_are_a_fault_of_the_machinery(pens: Made, tmp_path: Path) -> None:
    team = DSBench(TeamOptions())
    with pytest.raises(ToolError, match="cannot be read"):
        await team.grade_file(None, replace(pens.task, reference=str(tmp_path / "gone.csv")))
    with pytest.raises(TaskError, match="no answers"):
        await team.grade_file(None, replace(pens.task, reference=None))


async def test_a_file_is_graded_by_its_ids(pens: Made, tmp_path: Path) -> None:
    team, file = DSBench(TeamOptions()), tmp_path / "submission.csv"
    pens.answers.sample(frac=1, random_state=0).to_csv(file, index=False)
    assert (await team.grade_file(file, pens.task))["raw"] == 1.0
    assert (await team.grade_file(None, pens.task)) == {
        "success": 0.0, "parsed": 0.0, "fair_dummy": 0.0, "fair_paper": 0.0, "rejected_no_file": 1.0,
    }  # fmt: skip


async def test_a_table_that_is_not_accepted_is_parsed_all_the_same(pens: Made, tmp_path: Path) -> None:
    team, file = DSBench(TeamOptions()), tmp_path / "submission.csv"
    pens.answers.iloc[1:].to_csv(file, index=False)
    refused = await team.grade_file(file, pens.task)
    assert (refused["success"], refused["parsed"], refused["rejected_row_count"]) == (0.0, 1.0, 1.0)
    file.write_bytes(b"a table\0")
    unreadable = await team.grade_file(file, pens.task)
    assert (unreadable["parsed"], unreadable["rejected_unreadable"]) == (0.0, 1.0)


class Listening(Coach):
    """Keeps what it is told of the truth, by agent."""

    def __init__(self) -> None:
        self.told: dict[str, str | None] = {}

    async def score(self, scene: Scene) -> Verdict:
        self.told[scene.step.agent] = scene.truth
        return Verdict.scored(5, "")


async def test_truth_shown_to_a_coach_describes_the_reference_scores(python: PythonTool, pens: Made) -> None:
    coach, task = Listening(), with_reference_score(pens, 0.9).task
    trajectory = await played(python, task, ALL, coach)
    raw = trajectory.outcome["raw"]
    for agent, subject in ((MODELER, "What the model predicts"), (ANALYST, "The submission")):
        told = coach.told[agent]
        assert told is not None and told.startswith(subject) and f"scores {raw:.4g} by accuracy." in told
        assert "the best constant guess scores" in told and "A plain reference model, untuned, scores 0.9." in told
        assert "Skill from the constant guess (0)" in told and "Beside it: accuracy" in told
    assert "say nothing" in str(coach.told[DATA_ENGINEER])
    assert not any("answers.csv" in str(told) for told in coach.told.values())


async def test_a_coach_sees_that_a_large_accuracy_deceives(python: PythonTool, tmp_path: Path) -> None:
    task = made(tmp_path / "task", "accuracy")
    rare = task.train.assign(ink=["blue"] * 53 + ["red"] * 7)
    answers = task.answers.assign(ink=["blue"] * 27 + ["red"] * 3)
    rare.to_csv(task.task.files["train.csv"], index=False)
    answers.to_csv(str(task.task.reference), index=False)
    coach = Listening()
    dummy = code(
        "from sklearn.dummy import DummyClassifier as Model", "model = Model()", FIT, "pd.to_pickle(model, 'model.pkl')"
    )
    await played(python, task.task, (ENGINEER, dummy, ANALYSIS), coach)
    told = str(coach.told[ANALYST])
    assert (
        "accuracy 0.9 where 0.9 of the rows are blue; F1 0.474, the mean over the 2 labels; 1 of them are predicted."
        in told
    )
    assert "One value for all rows: ink." in told


async def test_a_coach_is_told_of_regressions_and_rejections_and_nothing_without_a_model(
    python: PythonTool, tmp_path: Path
) -> None:
    task, coach = made(tmp_path / "task", "rmse").task, Listening()
    ridge = code(RIDGE, "model = Model()", FIT, "pd.to_pickle(model, 'model.pkl')")
    wrong = code(PREDICT, HAND_IN.replace("'ink':", "'prediction':"))
    await played(python, task, (ENGINEER, ridge, wrong), coach, turns=1)
    assert "Beside it: R2" in str(coach.told[MODELER])
    assert "is rejected, and counts as nothing: columns:" in str(coach.told[ANALYST])
    await played(python, task, (ENGINEER, "No.", "No."), coach, turns=1)
    assert "no predictions of a model" in str(coach.told[MODELER])
    assert "no_file" in str(coach.told[ANALYST])


async def test_probabilities_are_told_as_labels_too(pens: Made, tmp_path: Path) -> None:
    task = made(tmp_path / "task", "roc_auc")
    truth = load_truth(Path(str(task.task.reference)), problem_of_task(task.task))
    scene = Scene(task=task.task, role=ROLES[ANALYST], step=action("", calls=False))
    file = tmp_path / "submission.csv"
    chances = pd.DataFrame({"pen_id": task.answers.pen_id, "ink": 0.2 + 0.5 * task.answers.ink})
    chances.to_csv(file, index=False)
    told = describe_truth(scene, truth, file)
    assert "scores 1 by roc_auc" in told and "(from 0.5 on it counts as 1): accuracy 1 where" in told
    chances.assign(ink=chances.ink * 10).to_csv(file, index=False)
    assert "Beside it" not in describe_truth(scene, truth, file)
