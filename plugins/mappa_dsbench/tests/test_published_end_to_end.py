"""The published tasks as a run sees them: loaded from disk, told, and graded through the workflow; 72 of 72."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from mappa_core import Task, TaskError
from mappa_dsbench.grading.metrics import METRICS, problem_kind
from mappa_dsbench.options import PublishedOptions, TeamOptions
from mappa_dsbench.published import tasks as source
from mappa_dsbench.published.catalogue import find_published, load_catalogue
from mappa_dsbench.published.tasks import PublishedTasks
from mappa_dsbench.table import table_of_task
from mappa_dsbench.workflow import DSBench

from .published_files import TEST_ROWS, TRAIN_ROWS, write, write_task

every_task = pytest.mark.parametrize("name", sorted(load_catalogue()))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made-up files of all 72 tasks. They say nothing of DSBench's own scores, but for one that has its true size."""
    root = tmp_path_factory.mktemp("data")
    for name, task in load_catalogue().items():
        write_task(root, task, test_rows=50 if name == "dont-overfit-ii" else None)
    return root


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kept")


def load(root: Path, kept: Path, split: str, **options: object) -> tuple[Task, ...]:
    return tuple(PublishedTasks(PublishedOptions(data=str(root), folder=str(kept), **options)).load(split))


@pytest.fixture(scope="module")
def tasks(root: Path, kept: Path) -> dict[str, Task]:
    return {task.id: task for split in ("train", "eval") for task in load(root, kept, split)}


@pytest.fixture(scope="module")
def team() -> DSBench:
    return DSBench(TeamOptions(prompts="tiny"))


def rows(path: str) -> list[list[str]]:
    with Path(path).open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


# 72 of 72


def test_both_splits_are_whole(root: Path, kept: Path, tasks: dict[str, Task]) -> None:
    assert set(tasks) == set(load_catalogue())
    assert [len(load(root, kept, split)) for split in ("train", "eval")] == [64, 8]


@every_task
def test_a_task_has_its_type_metric_and_columns(tasks: dict[str, Task], name: str) -> None:
    task, known = tasks[name], find_published(name)
    table = table_of_task(task)
    problem = table.problem
    assert (problem.metric, problem.kind) == (known.metric, problem_kind(known.metric))
    assert (task.stratum, task.cluster) == (problem.kind, None)
    assert (problem.id_column, problem.targets) == (known.id_column, known.targets)
    assert table.features == ("x", "about")
    assert (table.missing, table.categorical) == (False, True)
    assert f"\n{','.join((problem.id_column, *problem.targets))}\n" in task.prompt
    assert list(task.files) == ["train.csv", "test.csv", "sample_submission.csv"]
    assert [len(rows(path)) - 1 for path in task.files.values()][1:] == [
        50 if name == "dont-overfit-ii" else TEST_ROWS
    ] * 2
    assert len(rows(task.files["train.csv"])) - 1 == TRAIN_ROWS


@every_task
async def test_a_task_is_graded_through_the_workflow(
    tasks: dict[str, Task], team: DSBench, name: str, tmp_path: Path
) -> None:
    task = tasks[name]
    metric = METRICS[find_published(name).metric]
    right = rows(task.reference)
    if metric.prediction == "score":
        right = [[{"True": "1", "False": "0"}.get(cell, cell) for cell in row] for row in right]
    handed_in = tmp_path / "submission.csv"
    write(handed_in, right[0], right[:0:-1])
    perfect = await team.grade_file(handed_in, task)
    assert perfect["raw"] == pytest.approx(metric.perfect, abs=1e-9)
    assert (perfect["success"], perfect["fair_dummy"]) == (1, pytest.approx(1))
    assert perfect.get("fair_paper", 1) == pytest.approx(1)
    sample = rows(task.files["sample_submission.csv"])
    write(handed_in, sample[0], [[{"False": "0"}.get(cell, cell) for cell in row] for row in sample[1:]])
    constant = await team.grade_file(handed_in, task)
    assert constant["success"] == 1 and constant["fair_dummy"] < 1
    write(handed_in, right[0], right[1:2])
    assert (await team.grade_file(handed_in, task))["rejected_row_count"] == 1
    nothing = await team.grade_file(None, task)
    assert (nothing["success"], nothing["fair_dummy"], nothing["rejected_no_file"]) == (0, 0, 1)


@pytest.mark.parametrize(
    ("name", "kind", "metric", "columns"),
    [
        ("tabular-playground-series-oct-2021", "classification", "roc_auc", "id,target"),
        ("liverpool-ion-switching", "classification", "f1_macro", "time,open_channels"),
        ("titanic", "classification", "accuracy", "PassengerId,Survived"),
        ("google-quest-challenge", "regression", "mean_spearman", "qa_id,question_asker_intent_understanding,"),
    ],
)
def test_what_was_published_wrongly_is_loaded_as_it_is(
    tasks: dict[str, Task], name: str, kind: str, metric: str, columns: str
) -> None:
    assert find_published(name).corrections
    task = tasks[name]
    assert (task.stratum, table_of_task(task).problem.metric) == (kind, metric)
    assert f"\n{columns}" in task.prompt


def test_the_published_scores_hold_for_the_published_tables_alone(tasks: dict[str, Task]) -> None:
    assert table_of_task(tasks["dont-overfit-ii"]).published == (0.5, 1.0)
    assert table_of_task(tasks["titanic"]).published is None  # Its test table has 179 rows.
    assert table_of_task(tasks["tabular-playground-series-oct-2021"]).published is None
    assert sum(table_of_task(task).published is not None for task in tasks.values()) > 50


# On disk


def test_large_tables_stay_where_they_are(root: Path, kept: Path, tasks: dict[str, Task]) -> None:
    for task in tasks.values():
        assert all(Path(path).is_relative_to(root) for path in (*task.files.values(), task.reference))
    assert {path.name for path in kept.rglob("*") if path.is_file()} == {"known.json"}


def test_checked_tasks_are_not_checked_again(
    root: Path, kept: Path, tasks: dict[str, Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "check_task", lambda *arguments: pytest.fail("looked again"))
    assert load(root, kept, "eval") == tuple(task for task in tasks.values() if find_published(task.id).split == "eval")


def test_a_changed_table_is_looked_at_again(tmp_path: Path) -> None:
    tables = write_task(tmp_path, find_published("playground-series-s3e25"))
    (before,) = load(tmp_path, tmp_path / "kept", "eval", tasks=["playground-series-s3e25"])
    text = (tables / "train.csv").read_text().replace(",3\n", ",99\n")
    (tables / "train.csv").write_text(text)
    (after,) = load(tmp_path, tmp_path / "kept", "eval", tasks=["playground-series-s3e25"])
    assert (table_of_task(before).problem.range, table_of_task(after).problem.range) == ((-0.25, 3.0), (-0.25, 99.0))


def test_ids_and_a_sample_are_made_where_there_are_none(tmp_path: Path) -> None:
    task = find_published("playground-series-s3e22")
    tables = write_task(tmp_path, task)
    for path in (tables / "test.csv", tmp_path / "answers" / task.name / "test_answer.csv"):
        header, *lines = rows(str(path))
        write(path, header[1:], [line[1:] for line in lines])
    (tables / "sampleSubmission.csv").unlink()
    (loaded,) = load(tmp_path, tmp_path / "kept", "train", tasks=[task.name])
    assert [row[0] for row in rows(loaded.files["test.csv"])] == ["id", *map(str, range(10))]
    assert rows(loaded.files["sample_submission.csv"]) == [["id", "outcome"], *([str(at), "0"] for at in range(10))]
    assert [row[0] for row in rows(loaded.reference)] == ["id", *map(str, range(10))]
    assert Path(loaded.files["train.csv"]) == tables / "train.csv"
    shown = [Path(loaded.files[name]).stat().st_mode & 0o777 for name in ("test.csv", "sample_submission.csv")]
    assert (shown, Path(loaded.reference).stat().st_mode & 0o777) == ([0o644, 0o644], 0o600)
    assert load(tmp_path, tmp_path / "kept", "train", tasks=[task.name]) == (loaded,)


def test_a_task_that_is_not_there_is_named_with_what_to_do(root: Path, tmp_path: Path) -> None:
    write_task(tmp_path, find_published("titanic"))
    with pytest.raises(TaskError) as caught:
        load(tmp_path, tmp_path / "kept", "eval")
    message = str(caught.value)
    assert "8 published tasks cannot be used" in message and "lmsys-chatbot-arena: train.csv: missing" in message
    assert f"`mappa dsbench prepare {tmp_path}`" in message and "tasks.options.tasks" in message
    assert [task.id for task in load(tmp_path, tmp_path / "kept", "train", tasks=["titanic"])] == ["titanic"]


def test_what_dsbench_itself_lacks_may_be_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lacking, there = "tabular-playground-series-oct-2021", "playground-series-s3e1"
    monkeypatch.setattr(source, "load_catalogue", lambda: {name: find_published(name) for name in (lacking, there)})
    write_task(tmp_path, find_published(there))
    assert [task.id for task in load(tmp_path, tmp_path / "kept", "train")] == [there]
    with pytest.raises(TaskError, match=f"{lacking}: train.csv: missing"):
        load(tmp_path, tmp_path / "kept", "train", tasks=[lacking])


def test_wrong_answers_are_an_error_before_the_run(tmp_path: Path) -> None:
    task = find_published("playground-series-s3e25")
    write_task(tmp_path, task)
    answers = tmp_path / "answers" / task.name / "test_answer.csv"
    answers.write_text(answers.read_text().replace("1.5", "much"))
    with pytest.raises(TaskError, match=r"playground-series-s3e25: the answers .* values are no finite numbers"):
        load(tmp_path, tmp_path / "kept", "eval", tasks=[task.name])
    assert not list((tmp_path / "kept").rglob("known.json"))


def test_unknown_names_and_folders_are_refused(root: Path, tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="'titanik' is none of the 72 published tasks"):
        load(root, tmp_path, "train", tasks=["titanik"])
    with pytest.raises(TaskError, match="no folder data_resplit or answers in it"):
        load(tmp_path / "nowhere", tmp_path, "train")


def test_the_users_texts_are_told(root: Path, kept: Path, tmp_path: Path) -> None:
    text = tmp_path / "texts.json"
    text.write_text('{"playground-series-s3e25": {"cleaned_prompt": "Task: Predict how hard a mineral is."}}')
    (told,) = load(root, kept, "eval", tasks=["playground-series-s3e25"], texts=[str(text)])
    assert "Predict how hard a mineral is." in told.prompt
    assert told.prompt.startswith("Predict Hardness for every row of test.csv.")
