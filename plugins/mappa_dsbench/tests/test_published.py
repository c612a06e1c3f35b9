"""The published tasks: 72 of 72 with type, metric and columns; files of the right shape; every correction by itself."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from mappa_core import TaskError
from mappa_dsbench.commands import prepare
from mappa_dsbench.grading.metrics import METRICS, problem_kind
from mappa_dsbench.published.catalogue import Published, find_published, load_catalogue, load_corrections
from mappa_dsbench.published.check_files import TaskFiles, check_task, find_root
from mappa_dsbench.published.complete_files import join_ids
from mappa_dsbench.published.prompts import PublishedTexts, build_prompt, corrected_text, read_texts
from mappa_dsbench.published.read_problem import read_problem

from .published_files import TEST_ROWS, write, write_task

DATA = Path(__file__).parents[4] / "shared" / "data"
CLEANED = DATA / "dsbench_modeling_cleaned_prompts.json"
RAW = (DATA / "dsbench_modeling_train.json", DATA / "dsbench_modeling_eval.json")
SCORES = DATA / "dsbench_reference_scores.json"
SAME_METRIC = {
    "f1": "f1_binary",
    "quadratic_weighted_kappa": "qwk",
    "spearman": "mean_spearman",
    "jaccard": "jaccard_words",
}
"""Other names of what is the same in both."""

needs_data = pytest.mark.skipif(not CLEANED.exists(), reason="the published files are not here")
every_task = pytest.mark.parametrize("name", sorted(load_catalogue()))


def usable(root: Path, task: Published) -> TaskFiles:
    checked = check_task(root, task)
    assert checked.files is not None, checked.findings
    return checked.files


def reasons(root: Path, task: Published) -> set[tuple[str, str, bool]]:
    return {(finding.file, finding.reason, finding.blocks) for finding in check_task(root, task).findings}


@pytest.fixture(scope="module")
def cleaned():
    return json.loads(CLEANED.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def texts():
    return read_texts([CLEANED, *RAW])


@pytest.fixture(scope="module")
def types():
    """Task name to the type that was published."""
    metadata = (json.loads(line)["metadata"] for path in RAW for line in path.read_text(encoding="utf-8").splitlines())
    return {entry["task_id"]: entry["data_type"] for entry in metadata}


# The catalogue


def test_there_are_72_tasks_in_two_splits_and_two_kinds():
    tasks = load_catalogue().values()
    assert len(tasks) == 72
    assert [sum(task.split == split for task in tasks) for split in ("train", "eval")] == [64, 8]
    assert [sum(task.kind == kind for task in tasks) for kind in ("classification", "regression")] == [41, 31]
    assert sum(task.kind == "classification" for task in tasks if task.split == "eval") == 6
    assert sum(len(task.targets) > 1 for task in tasks) == 10


@every_task
def test_metric_direction_kind_and_columns_agree_with_the_registry(name):
    task = load_catalogue()[name]
    metric = METRICS[task.metric]
    assert (task.better, task.kind) == (metric.better, problem_kind(task.metric))
    assert len(task.targets) == 1 or metric.columns == "any"
    if task.perfect is not None:
        assert task.perfect == pytest.approx(metric.perfect, abs=1e-9)


def test_size_classes():
    sizes = {task.name: task.size for task in load_catalogue().values()}
    assert sum(size == "heavy" for size in sizes.values()) == 10
    assert sizes["titanic"] == "small" and sizes["microsoft-malware-prediction"] == "heavy"
    assert sizes["tabular-playground-series-oct-2021"] == "unknown"


def test_a_task_that_is_not_published_is_named():
    with pytest.raises(TaskError, match="'titanik' is none of the 72"):
        find_published("titanik")


@needs_data
def test_baselines_and_perfect_values_are_dsbenchs_own():
    scores = json.loads(SCORES.read_text(encoding="utf-8"))["tasks"]
    for name, task in load_catalogue().items():
        if name == "tabular-playground-series-oct-2021":
            assert name not in scores and task.baseline is None and task.perfect is None
            continue
        entry = scores[name]
        assert (task.baseline, task.perfect, task.year) == (entry["baseline"], entry["gt"], entry["year"])
        assert task.split == entry["reference_split"] and len(task.targets) == entry["n_targets"]
        assert (task.better == "higher") == entry["higher_is_better"]


@needs_data
def test_72_of_72_published_entries_are_known_with_their_split():
    for path, split in zip(RAW, ("train", "eval"), strict=True):
        names = set(read_texts([path]).raw)
        assert names == {task.name for task in load_catalogue().values() if task.split == split}


@needs_data
@every_task
def test_every_disagreement_with_the_published_entries_is_listed(name, cleaned, types):
    task = load_catalogue()[name]
    listed = {one.field: (one.published, one.true) for one in task.corrections if one.field in ("data_type", "metric")}
    found = {}
    if types[name] != task.kind:
        found["data_type"] = (types[name], task.kind)
    entry = cleaned.get(name)
    metric = "none" if entry is None else SAME_METRIC.get(entry["metric"], entry["metric"])
    if metric != task.metric:
        found["metric"] = (metric, task.metric)
    assert found == listed
    columns = None if entry is None else entry["target_column"]
    columns = [columns] if isinstance(columns, str) else columns
    assert (columns == list(task.targets)) == all(one.field != "targets" for one in task.corrections)
    assert entry is None or entry["id_column"] == task.id_column


# Corrections, one by one


@needs_data
@pytest.mark.parametrize("number", range(len(load_corrections())))
def test_each_correction_corrects_something_that_was_published(number, cleaned, texts, types):
    one = load_corrections()[number]
    task, before = load_catalogue()[one.task], cleaned.get(one.task, {}).get("cleaned_prompt")
    after = corrected_text(task, texts)
    for mark in (*one.lines, *one.phrases):
        assert mark in before and mark not in after
    if one.field == "data_type":
        assert (types[one.task], task.kind) == (one.published, one.true)
    elif one.field == "metric":
        assert task.metric == one.true != cleaned.get(one.task, {}).get("metric", "none")
    elif one.field == "targets":
        assert cleaned.get(one.task, {}).get("target_column", "none") == one.published
        assert one.published not in task.targets
    elif one.field == "id":
        assert task.ids == ("EmployeeNumber", "id")
    elif one.field == "prompt":
        assert after == one.text and after not in (before or "")
    elif one.field == "rows_graded":
        assert "inspiratory phase only" in before and "inspiratory" not in after.splitlines()[0]
        assert task.metric == "mae"
    elif one.field == "score":
        assert task.baseline is None and task.perfect is None
    else:
        assert one.field in ("rows", "split") and one.lines


def test_corrections_tell_each_disagreement_once():
    keys = [(one.task, one.field) for one in load_corrections()]
    assert len(set(keys)) == len(keys) == 42
    assert sum(field == "data_type" for _, field in keys) == 7


@needs_data
@every_task
def test_a_prompt_holds_the_facts_and_nothing_that_was_wrong(name, tmp_path, texts):
    task = load_catalogue()[name]
    write_task(tmp_path, task)
    files = usable(tmp_path, task)
    problem = read_problem(task, files)
    text = build_prompt(task, problem, texts, test_rows=files.test_rows)
    lines = text.splitlines()
    header = ",".join([task.id_column, *task.targets])
    assert [line for line in lines if line.startswith(f"{task.id_column},")] == [header]
    assert f"one row for each of the {TEST_ROWS} rows of test.csv" in text
    assert "Graded by: " in text and f"{task.better} is better" in text
    assert "Evaluation:" not in text and "Submission Format:" not in text and "LB" not in text
    assert not re.search(
        r"\d[\d,]* (rows|samples|observations|passengers|movies|tweets)\b", text.replace("10 rows", "")
    )


@needs_data
def test_the_prompt_of_titanic_is_titanics(tmp_path, texts):
    task = find_published("titanic")
    write_task(tmp_path, task)
    files = usable(tmp_path, task)
    text = build_prompt(task, read_problem(task, files), texts, test_rows=files.test_rows)
    assert "PassengerId,Survived" in text and "Transported" not in text and "HomePlanet" not in text
    assert "418" not in text


@needs_data
def test_no_line_of_a_published_text_is_in_our_facts():
    """Sentences are the publishers': none may stand in a file of ours."""
    folder = Path(build_prompt.__code__.co_filename).parent
    ours = "\n".join(path.read_text(encoding="utf-8") for path in folder.iterdir() if path.is_file())
    texts = read_texts([CLEANED, *RAW])
    sentences = {
        line.strip(" -") for text in (*texts.cleaned.values(), *texts.raw.values()) for line in text.splitlines()
    }
    assert [line for line in sentences if len(line.split()) >= 6 and line in ours] == []


# Texts


def test_a_raw_text_is_used_where_there_is_no_cleaned_one(tmp_path):
    row = {"prompt": "All about it.\nIt has 418 entries.", "metadata": {"task_id": "playground-series-s3e1"}}
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(row) + "\n\n", encoding="utf-8")
    texts = read_texts([path])
    assert corrected_text(find_published("playground-series-s3e1"), texts) == "All about it."
    assert corrected_text(find_published("playground-series-s3e2"), texts) == ""


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"titanic": {"prompt": "x"}}', "titanic: no text under cleaned_prompt"),
        ("{nothing\n", ":1: no JSON"),
        ('\n{"prompt": "x", "metadata": {}}\n{}', ":2: no text under metadata.task_id"),
        ('{"prompt": 3, "metadata": {"task_id": "t"}}', ":1: no text under prompt"),
        ('{"prompt": "a", "metadata": {"task_id": "t"}}\n' * 2, ":2: t a second time"),
    ],
)
def test_texts_that_cannot_be_used_say_where(tmp_path, content, message):
    path = tmp_path / "texts.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(TaskError, match=re.escape(message)):
        read_texts([path])


def test_two_files_may_not_tell_of_one_task(tmp_path):
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text('{"titanic": {"cleaned_prompt": "Task: x"}}', encoding="utf-8")
    with pytest.raises(TaskError, match="tells of titanic, as another file does"):
        read_texts([tmp_path / "a.json", tmp_path / "b.json"])


# Files


@every_task
def test_files_of_the_right_shape_pass_and_give_the_problem(name, tmp_path):
    task = load_catalogue()[name]
    write_task(tmp_path, task)
    files = usable(tmp_path, task)
    assert (files.ids, files.test_rows, files.id_column) == ("joined", TEST_ROWS, task.id_column)
    assert files.sample is not None
    problem = read_problem(task, files)
    assert (problem.name, problem.metric, problem.kind, problem.targets) == (name, task.metric, task.kind, task.targets)
    prediction = METRICS[task.metric].prediction
    assert (problem.labels is not None) == (prediction in ("label", "level", "ranking"))
    assert (problem.range is None) == (problem.labels is not None or prediction == "words")


def test_labels_and_range_come_from_the_training_table(tmp_path):
    for name in ("playground-series-s3e5", "spaceship-titanic", "playground-series-s3e1", "playground-series-s3e23"):
        write_task(tmp_path, find_published(name))
    problems = {
        name: read_problem(find_published(name), usable(tmp_path, find_published(name)))
        for name in ("playground-series-s3e5", "spaceship-titanic", "playground-series-s3e1", "playground-series-s3e23")
    }
    assert problems["playground-series-s3e5"].labels == ("3", "5", "8")
    assert problems["spaceship-titanic"].labels == ("False", "True")
    assert problems["playground-series-s3e1"].range == (-0.25, 3.0)
    assert problems["playground-series-s3e23"].range == (0.0, 1.0)


@pytest.mark.parametrize(
    ("name", "column", "cells", "message"),
    [
        ("playground-series-s3e1", "MedHouseVal", ["1", "high"], "cannot be read: Unable to parse"),
        ("playground-series-s3e1", "MedHouseVal", ["", ""], "no row has a target"),
        ("playground-series-s4e2", "NObeyesdad", ["Normal_Weight", ""], "a row has no label"),
    ],
)
def test_targets_that_cannot_be_used_are_told(tmp_path, name, column, cells, message):
    task = find_published(name)
    tables = write_task(tmp_path, task)
    write(tables / "train.csv", ["id", column], [[row, cell] for row, cell in enumerate(cells)])
    with pytest.raises(TaskError, match=message):
        read_problem(task, usable(tmp_path, task))


def test_the_known_number_of_test_rows_is_compared(tmp_path):
    task = find_published("dont-overfit-ii")
    write_task(tmp_path, task, test_rows=50)
    assert check_task(tmp_path, task).findings == ()
    write_task(tmp_path, task)
    assert reasons(tmp_path, task) == {("test.csv", "row_count", False)}


def test_a_missing_file_is_named(tmp_path):
    task = find_published("playground-series-s3e1")
    assert check_task(tmp_path, task).absent
    tables = write_task(tmp_path, task)
    (tmp_path / "answers" / task.name / "test_answer.csv").unlink()
    assert reasons(tmp_path, task) == {("test_answer.csv", "missing", True)}
    assert not check_task(tmp_path, task).absent
    write_task(tmp_path, task)
    (tables / "sampleSubmission.csv").unlink()
    assert reasons(tmp_path, task) == {("sample", "missing", False)}
    assert usable(tmp_path, task).sample is None


def test_more_than_one_sample_is_told(tmp_path):
    task = find_published("playground-series-s3e1")
    tables = write_task(tmp_path, task)
    write(tables / "other.csv", ["id"], [["1"]])
    assert reasons(tmp_path, task) == {("other.csv, sampleSubmission.csv", "several", False)}


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("train.csv", "id,x,about\n1,2,3\n", "columns"),
        ("train.csv", "id,x,MedHouseVal\n", "empty"),
        ("train.csv", "", "unreadable"),
        ("train.csv", "id,x,x,MedHouseVal\n1,2,3,4\n", "unreadable"),
        ("train.csv", b"id,x,MedHouseVal\n\xff\xfe,2,3\n", "unreadable"),
        ("train.csv", "id,MedHouseVal\n1,2\n1,2,3,4\n", "unreadable"),
        ("test.csv", "id,x,MedHouseVal\n1040,2,3\n", "truth_shown"),
        ("test.csv", "id,x\n", "empty"),
        ("test.csv", "id,x\n1040,2\n", "row_count"),
        ("test.csv", "id,x\n" + "1040,2\n" * 10, "duplicate_ids"),
        ("test.csv", "id,x\n" + "".join(f"{row},2\n" for row in range(10)), "id_mismatch"),
        ("answers", "id,Price\n1040,2\n", "columns"),
        ("answers", "id,MedHouseVal\n" + "1040,2\n" * 10, "duplicate_ids"),
    ],
)
def test_a_file_that_is_wrong_blocks_with_its_reason(tmp_path, file, content, reason):
    task = find_published("playground-series-s3e1")
    tables = write_task(tmp_path, task)
    path = tmp_path / "answers" / task.name / "test_answer.csv" if file == "answers" else tables / file
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    checked = check_task(tmp_path, task)
    assert checked.files is None
    assert reason in {finding.reason for finding in checked.findings if finding.blocks}, checked.findings


def test_ids_are_the_same_however_they_are_written(tmp_path):
    task = find_published("playground-series-s3e1")
    write_task(tmp_path, task)
    rows = [[f" {1040 + row}.0", "1"] for row in range(10)]
    write(tmp_path / "answers" / task.name / "test_answer.csv", ["id", "MedHouseVal"], rows)
    assert check_task(tmp_path, task).findings == ()


def test_the_sample_decides_between_two_names_of_the_id(tmp_path):
    task = find_published("playground-series-s3e3")
    tables = write_task(tmp_path, task)
    for path in (tables / "train.csv", tables / "test.csv", tables / "sampleSubmission.csv"):
        path.write_text(path.read_text(encoding="utf-8").replace("EmployeeNumber", "id"), encoding="utf-8")
    answers = tmp_path / "answers" / task.name / "test_answer.csv"
    answers.write_text(answers.read_text(encoding="utf-8").replace("EmployeeNumber", "id"), encoding="utf-8")
    files = usable(tmp_path, task)
    assert (files.id_column, files.ids) == ("id", "joined")
    assert read_problem(task, files).id_column == "id"


def test_a_sample_with_another_header_is_told(tmp_path):
    task = find_published("playground-series-s3e1")
    write(write_task(tmp_path, task) / "sampleSubmission.csv", ["id", "Price"], [["1", "2"]])
    assert reasons(tmp_path, task) == {("sampleSubmission.csv", "columns", False)}
    (tmp_path / "data_resplit" / task.name / "sampleSubmission.csv").write_bytes(b"")
    assert reasons(tmp_path, task) == {("sampleSubmission.csv", "unreadable", False)}
    assert usable(tmp_path, task).id_column == "id"


def test_answers_without_ids_follow_the_test_table(tmp_path):
    task = find_published("demand-forecasting-kernels-only")
    write_task(tmp_path, task)
    write(tmp_path / "answers" / task.name / "test_answer.csv", ["sales"], [[row] for row in range(10)])
    files = usable(tmp_path, task)
    assert (files.ids, files.test_rows) == ("row_order", 10)
    assert reasons(tmp_path, task) == {("test_answer.csv", "no_id", False)}
    mended = join_ids(files, tmp_path)
    assert (mended.ids, mended.test) == ("joined", files.test)
    assert rows_of(mended.answers) == [["id", "sales"], *[[str(1040 + row), str(row)] for row in range(10)]]


def rows_of(path: Path) -> list[list[str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def test_a_test_table_without_ids_is_numbered(tmp_path):
    task = find_published("demand-forecasting-kernels-only")
    tables = write_task(tmp_path, task)
    write(tables / "test.csv", ["date", "store"], [[f"2017-01-{row + 1:02}", "a,\nb"] for row in range(10)])
    files = usable(tmp_path, task)
    assert files.ids == "row_number"
    mended = join_ids(files, tmp_path)
    rows = rows_of(mended.test)
    assert rows[0] == ["id", "date", "store"] and rows[10] == ["9", "2017-01-10", "a,\nb"] and len(rows) == 11
    before = rows_of(files.answers)
    assert rows_of(mended.answers) == [before[0], *[[str(row), before[row + 1][1]] for row in range(10)]]
    with pytest.raises(TaskError, match="cannot be written"):
        join_ids(files, tmp_path)


def test_a_cell_that_is_too_long_is_said_and_leaves_no_copy(tmp_path):
    task = find_published("demand-forecasting-kernels-only")
    tables = write_task(tmp_path, task)
    write(tables / "test.csv", ["date", "text"], [["2017-01-01", "x" * 200_000] for _ in range(10)])
    with pytest.raises(
        TaskError, match=r"test.csv cannot be copied with ids: field larger than field limit \(131072\)"
    ):
        join_ids(usable(tmp_path, task), tmp_path)
    assert not (tmp_path / "test.csv").exists()


def test_a_row_of_too_few_cells_is_named_and_leaves_no_copy(tmp_path):
    task = find_published("demand-forecasting-kernels-only")
    tables = write_task(tmp_path, task)
    rows = [[f"2017-01-{row + 1:02}", "a"] for row in range(10)]
    write(tables / "test.csv", ["date", "store"], [*rows[:4], ["2017-01-05"], *rows[5:]])
    with pytest.raises(TaskError, match=r"test.csv:6: 1 cells, but the header has 2"):
        join_ids(usable(tmp_path, task), tmp_path)
    assert not (tmp_path / "test.csv").exists()


def test_an_empty_answer_does_not_shift_the_others(tmp_path):
    task = find_published("demand-forecasting-kernels-only")
    write_task(tmp_path, task)
    answers = tmp_path / "answers" / task.name / "test_answer.csv"
    answers.write_text("sales\n" + "1\n" * 4 + "\n" + "2\n" * 5, encoding="utf-8")
    with pytest.raises(TaskError, match="9 rows with values, but 10 were counted"):
        join_ids(usable(tmp_path, task), tmp_path)


def test_files_with_ids_are_not_copied(tmp_path):
    task = find_published("titanic")
    write_task(tmp_path, task)
    files = usable(tmp_path, task)
    assert join_ids(files, tmp_path / "nowhere") is files


@pytest.mark.parametrize("below", [".", "data", "data/DSBench/data"])
def test_the_root_is_found_below_what_was_named(tmp_path, below):
    write_task(tmp_path / below, find_published("titanic"))
    assert find_root(tmp_path).resolve() == (tmp_path / below).resolve()


# The command


def run(*arguments: object):
    return CliRunner().invoke(prepare, [str(argument) for argument in arguments])


def test_prepare_tells_task_by_task_what_is_there_and_on_which_terms(tmp_path):
    write_task(tmp_path, find_published("playground-series-s3e1"))
    tables = write_task(tmp_path, find_published("playground-series-s3e2"))
    (tables / "train.csv").unlink()
    write(write_task(tmp_path, find_published("titanic")) / "train.csv", ["PassengerId", "x"], [["1", "2"]])
    result = run(tmp_path)
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    states = {line.split()[1]: line.split()[0] for line in lines[: lines.index("")] if not line.startswith(" ")}
    assert len(states) == 72
    assert states["playground-series-s3e1"] == "usable" and states["playground-series-s3e2"] == "incomplete"
    assert states["titanic"] == "broken" and states["cat-in-the-dat"] == "absent"
    assert "            train.csv: columns: no column 'Survived'" in lines
    assert "69 absent, 1 usable, 1 incomplete, 1 broken of 72 tasks" in lines
    assert "strictly non-commercially" in result.output and "data_modeling/data.zip" in result.output
    assert "its archive does not hold it" in result.output
    assert lines[-1].endswith("'tasks.options.tasks=[playground-series-s3e1]'")
    assert "            https://www.kaggle.com/competitions/playground-series-s3e2" in lines


def test_prepare_json_holds_the_same(tmp_path):
    write_task(tmp_path, find_published("titanic"))
    text = {"titanic": {"cleaned_prompt": "Task: x"}, "cat-in-the-dat": {"cleaned_prompt": "Task: y"}}
    (tmp_path / "dsbench_modeling_cleaned_prompts.json").write_text(json.dumps(text), encoding="utf-8")
    result = run(tmp_path, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    rows = {row["task"]: row for row in found["tasks"]}
    assert len(rows) == 72 and "non-commercially" in found["terms"]
    titanic = rows["titanic"]
    assert (titanic["state"], titanic["test_rows"], titanic["text"], titanic["kind"]) == (
        "usable", 10, "own", "classification",
    )  # fmt: skip
    assert [one["reason"] for one in titanic["findings"]] == ["row_count"]
    assert (rows["cat-in-the-dat"]["state"], rows["cat-in-the-dat"]["text"]) == ("absent", "cleaned")


def test_prepare_without_a_usable_task_is_an_error_after_the_table(tmp_path):
    (tmp_path / "data_resplit").mkdir()
    result = run(tmp_path)
    assert isinstance(result.exception, TaskError) and "no published task is usable" in str(result.exception)
    assert "72 absent of 72 tasks" in result.output


def test_prepare_of_another_folder_says_what_is_wanted_and_the_terms(tmp_path):
    result = run(tmp_path)
    assert isinstance(result.exception, TaskError)
    assert "no folder data_resplit or answers" in str(result.exception) and "Terms: " in str(result.exception)


def test_summary_names_what_is_too_much_for_a_laptop(tmp_path):
    write_task(tmp_path, find_published("instant-gratification"))
    assert "too much for a laptop: instant-gratification" in run(tmp_path).output


def test_texts_default_to_none():
    assert corrected_text(find_published("playground-series-s3e1"), PublishedTexts()) == ""
