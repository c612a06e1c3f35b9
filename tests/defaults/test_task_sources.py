"""Tasks from files and data sets: what is read, and how each unusable file is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from mappa.sessions import compose
from mappa.testing import load_plugins
from mappa_core import ConfigError, TaskError
from mappa_core.data import read_rows
from mappa_core.defaults.task_sources import FileOptions, FileTasks, HuggingFaceOptions, HuggingFaceTasks

DATA = Path(__file__).parents[3] / "shared" / "data"
ROWS = [
    {"prompt": "One?", "answer": "023", "id": "a-1", "year": 1983, "part": None},
    {"prompt": "Zwei – π?", "answer": 142.0, "id": 7, "year": 1984, "part": "II"},
    {"prompt": "Three?", "answer": 3, "id": None, "year": 1985, "part": "I"},
]


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text.encode("utf-8") if isinstance(text, str) else text)
    return path


def as_lines(rows) -> str:
    return "\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n"


def load(path, split="eval", **options):
    return FileTasks(FileOptions(path=str(path), **options)).load(split)


def parquet(path: Path, rows) -> Path:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


# --- what is read ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.json", json.dumps(ROWS)),
        ("t.json", "\ufeff" + json.dumps(ROWS, indent=2)),
        ("t.json", as_lines(ROWS)),
        ("t.jsonl", as_lines(ROWS)),
        ("t.ndjson", as_lines(ROWS).replace("\n", "\r\n\r\n")),
        ("t.txt", as_lines(ROWS)),
    ],
)
def test_json_and_json_lines_give_the_same_tasks_whatever_the_suffix(tmp_path, name, text):
    tasks = load(write(tmp_path / name, text))
    assert [task.id for task in tasks] == ["a-1", "7", "t-3"]
    assert [task.reference for task in tasks] == ["023", "142.0", "3"]
    assert tasks[1].prompt == "Zwei – π?"
    assert tasks[0].meta == {"year": 1983, "part": None}
    assert {task.stratum for task in tasks} == {"all"}


def test_parquet_and_csv_give_the_same_tasks_as_json(tmp_path):
    rows = [{**row, "answer": str(row["answer"]), "id": str(index)} for index, row in enumerate(ROWS)]
    plain = load(write(tmp_path / "t.json", json.dumps(rows)))
    assert load(parquet(tmp_path / "t.parquet", rows)) == plain
    cells = "prompt,answer,id\n" + "".join(f'"{row["prompt"]}",{row["answer"]},{row["id"]}\n' for row in rows)
    from_csv = load(write(tmp_path / "t.csv", cells))
    assert [(t.id, t.prompt, t.reference) for t in from_csv] == [(t.id, t.prompt, t.reference) for t in plain]


def test_an_answer_may_be_null_and_other_columns_may_be_anything(tmp_path):
    path = write(tmp_path / "t.json", as_lines([{"prompt": "x", "answer": None, "metadata": {"a": 1}, "tags": ["b"]}]))
    (task,) = load(path)
    assert task.reference is None and task.meta == {}


def test_columns_suffix_and_stratum_are_options(tmp_path):
    path = write(tmp_path / "t.jsonl", as_lines([{"problem": "x", "key": "y", "level": 5, "number": 9}]))
    (task,) = load(path, prompt="problem", reference=None, stratum="level", id="number")
    assert (task.id, task.prompt, task.reference, task.stratum) == ("9", "x", None, "5")
    assert task.meta == {"key": "y"}


def test_eval_is_the_held_out_file_or_else_the_only_one(tmp_path):
    train = write(tmp_path / "train.jsonl", as_lines(ROWS[:2]))
    held_out = write(tmp_path / "held-out.jsonl", as_lines(ROWS[2:]))
    assert [task.id for task in load(train, "train", eval_path=str(held_out))] == ["a-1", "7"]
    assert [task.id for task in load(train, "eval", eval_path=str(held_out))] == ["held-out-1"]
    assert load(train, "eval") == load(train, "train")


def test_reading_twice_gives_the_same_tasks_in_the_same_order(tmp_path):
    source = FileTasks(FileOptions(path=str(write(tmp_path / "t.json", json.dumps(ROWS)))))
    assert source.load("train") == source.load("train")


@pytest.mark.parametrize(
    ("name", "count", "first", "last"),
    [
        ("AIME_1983_2024.json", 933, ("1983-1", "60"), None),
        ("amc.json", 117, ("0", "142.0"), None),
        ("aime_2025.json", 30, ("aime_2025-1", "70"), "aime_2025-30"),
    ],
)
def test_the_published_files_are_read_whole(name, count, first, last):
    if not (DATA / name).exists():
        pytest.skip(f"the published data is not here: {name}")
    tasks = load(DATA / name)
    assert len(tasks) == count == len({task.id for task in tasks})
    assert (tasks[0].id, tasks[0].reference) == first
    assert last is None or tasks[-1].id == last
    assert all(task.reference for task in tasks)


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("t.json", "", "t.json: the file is empty"),
        ("t.json", " \n ", "t.json: the file is empty"),
        ("t.json", "[]", "t.json: the file holds no rows"),
        ("t.csv", "prompt,answer\n", "t.csv: the file holds no rows"),
        ("t.json", "hello", "t.json, line 1, column 1: not JSON"),
        ("t.json", '[{"prompt": "x"},\n {"prompt": }]', "t.json, line 2, column 13: not JSON"),
        ("t.json", '{\n"prompt": "x"\n}', "t.json: holds one JSON object; a list of objects"),
        ("t.json", '[{"prompt": "x", "answer": 1},\n\n 5]', r"t.json, row 2 \(line 3\): a JSON number"),
        ("t.json", '{"prompt": "x"\n{"prompt": "y"}', "t.json, line 1, column 15: not JSON"),
        ("t.jsonl", '{"prompt": "x", "answer": 1}\n\n{"prompt": ', "t.jsonl, line 3, column 12: not JSON"),
        ("t.jsonl", '{"prompt": "x", "answer": 1}\n[1]', "t.jsonl, line 2: a JSON list"),
        ("t.jsonl", b'{"prompt": "caf\xe9"}', r"t.jsonl: byte 15 \(0xe9\) is not UTF-8"),
        ("t.csv", "prompt,answer\nx,1\ny\n", "t.csv, line 3: not as many cells"),
        ("t.csv", "prompt,answer\nx,1,2\n", "t.csv, line 2: not as many cells"),
        ("t.csv", 'prompt,answer\n"x"y,1\n', "t.csv, line 2: not CSV"),
        ("t.parquet", "PAR1 and no more", "t.parquet: not Parquet"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_with_the_place(tmp_path, name, text, message):
    with pytest.raises(TaskError, match=message):
        load(write(tmp_path / name, text))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"answer": 1}, "no column 'prompt'; the columns here are answer. .*tasks.options.prompt"),
        ({"prompt": "x"}, "no column 'answer'; .*tasks.options.reference"),
        ({"prompt": "", "answer": 1}, "'prompt' is empty"),
        ({"prompt": ["x"], "answer": 1}, "'prompt' is not text"),
        ({"prompt": None, "answer": 1}, "'prompt' is not text"),
        ({"prompt": "x", "answer": True}, "'answer' is neither text nor a number: True"),
        ({"prompt": "x", "answer": " "}, "'answer' is neither text nor a number"),
        ({"prompt": "x", "answer": [1]}, "'answer' is neither text nor a number"),
        ({"prompt": "x", "answer": float("nan")}, "'answer' is neither text nor a number: nan"),
        ({"prompt": "x", "answer": 1, "id": 1.5}, "'id' is neither text nor a whole number"),
        ({"prompt": "x", "answer": 1, "id": ""}, "'id' is neither text nor a whole number"),
    ],
)
def test_a_bad_row_is_refused_with_its_line(tmp_path, row, message):
    good = {"prompt": "fine", "answer": 1}
    with pytest.raises(TaskError, match=f"t.jsonl, line 3: {message}"):
        load(write(tmp_path / "t.jsonl", as_lines([good]) + "\n" + as_lines([row])))
    with pytest.raises(TaskError, match=rf"t.json, row 3 \(line 5\): {message}"):
        load(write(tmp_path / "t.json", "[" + ",\n\n".join(map(json.dumps, [good, {**good, "k": "a,]"}, row])) + "]"))


def test_an_id_that_occurs_twice_is_refused_with_both_places(tmp_path):
    path = write(tmp_path / "t.jsonl", as_lines([ROWS[0], ROWS[1], {**ROWS[2], "id": "a-1"}]))
    with pytest.raises(TaskError, match=r"line 3: the id 'a-1' is already that of .*t.jsonl, line 1"):
        load(path)


def test_a_stratum_that_is_missing_is_refused(tmp_path):
    with pytest.raises(TaskError, match="line 1: 'part' is null"):
        load(write(tmp_path / "t.jsonl", as_lines(ROWS)), stratum="part")


def test_path_that_is_no_file_is_refused(tmp_path):
    with pytest.raises(TaskError, match=r"missing\.json: there is no such file"):
        load(tmp_path / "missing.json")
    with pytest.raises(TaskError, match="is a folder"):
        load(tmp_path)
    words = ["tasks.use=file", "tasks.options={path: x.json, format: xml}"]
    with pytest.raises(ConfigError, match="must be one of auto, json, jsonl, csv, parquet, not 'xml'"):
        compose(load_plugins(), "mathchat", overrides=words)


def test_parquet_without_pyarrow_says_what_to_install(tmp_path, monkeypatch):
    path = parquet(tmp_path / "t.parquet", [{"prompt": "x", "answer": "1"}])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r'pip install "mappa-core\[data\]"'):
        load(path)


def test_the_line_of_a_row_is_found_by_the_parser_and_not_by_counting_brackets(tmp_path):
    rows = [{"prompt": "[\n{,", "n": [1, {"a": 2}]}, {"prompt": 'q",\n['}, {"x": 1}]
    found = read_rows(write(tmp_path / "t.json", json.dumps(rows, indent=1)))
    lines = json.dumps(rows, indent=1).split("\n")
    for index in range(3):
        line = int(found.place(index).split("(line ")[1].rstrip(")"))
        assert lines[line - 1] == " {"
    assert found.place(2) > found.place(1) > found.place(0)


# --- data sets ------------------------------------------------------------------------------------------------------


@pytest.fixture
def offline(monkeypatch, tmp_path):
    datasets = pytest.importorskip("datasets", reason="the extra `data` is not installed")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "sums"
    folder.mkdir()
    write(folder / "train.jsonl", as_lines([{"prompt": "1+1", "answer": "2", "id": "x"}]))
    write(folder / "test.jsonl", as_lines([{"prompt": "2+2", "answer": "4"}, {"prompt": "2+3", "answer": "5"}]))
    return folder


def test_a_folder_with_a_data_set_is_read_without_a_network(folder, offline):
    source = HuggingFaceTasks(HuggingFaceOptions(path=str(folder), suffix="!"))
    assert [(task.id, task.prompt, task.reference) for task in source.load("train")] == [("x", "1+1!", "2")]
    assert [(task.id, task.reference) for task in source.load("eval")] == [("sums-test-1", "4"), ("sums-test-2", "5")]


def test_a_parquet_data_set_takes_the_same_columns(tmp_path, offline):
    (tmp_path / "sums").mkdir()
    parquet(tmp_path / "sums" / "train.parquet", [{"problem": "1+1", "solution": 2.0}])
    options = HuggingFaceOptions(
        path=str(tmp_path / "sums"), prompt="problem", reference="solution", eval_split="train"
    )
    assert HuggingFaceTasks(options).load("eval")[0].reference == "2.0"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eval_split": "dev"}, 'split dev: .*"dev"'),
        ({"prompt": "question"}, "split test, row 1: no column 'question'"),
        ({"path": "nobody/has-this"}, "data set nobody/has-this, split test"),
    ],
)
def test_a_data_set_that_cannot_be_used_is_refused_with_the_place(folder, offline, options, message):
    with pytest.raises(TaskError, match=message):
        HuggingFaceTasks(HuggingFaceOptions(**{"path": str(folder), **options})).load("eval")


def test_without_datasets_the_error_says_what_to_install(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigError, match="pip install"):
        HuggingFaceTasks(HuggingFaceOptions(path=str(folder))).load("train")


def test_the_module_of_the_options_is_light():
    heavy = {"datasets", "pyarrow", "pandas", "torch"}
    code = f"import sys, mappa_core.defaults.task_sources; assert not {heavy} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
