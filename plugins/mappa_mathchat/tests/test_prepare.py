"""`mappa mathchat prepare`: the published files, checked, disjoint, whole or not at all."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from click.testing import CliRunner

from mappa.testing import load_plugins
from mappa_core import TaskError
from mappa_mathchat.prepare import find_sources, make_files, prepare, write_files
from mappa_mathchat.published import (
    PUBLISHED_FILES,
    PublishedProblem,
    content_sha256,
    find_overlap,
    select_training_subset,
)

DATA = Path(__file__).parents[4] / "shared" / "data"
OUTPUTS = ["eval-aime-2025.jsonl", "eval-amc.jsonl", "manifest.json", "train.jsonl"]

needs_data = pytest.mark.skipif(not (DATA / "amc.json").exists(), reason="the published data is not here")


def made_up(name: str, count: int) -> list[dict[str, object]]:
    return [{"prompt": f"Problem {index} of {name}?", "answer": f"{index:03}"} for index in range(count)]


@pytest.fixture
def copies(tmp_path):
    """Files of the published names and sizes with other problems in them."""
    folder = tmp_path / "copies"
    folder.mkdir()
    for published in PUBLISHED_FILES:
        rows = made_up(published.name, published.count)
        (folder / f"{published.name}.json").write_text(json.dumps(rows), encoding="utf-8")
    return folder


def run(*arguments: object):
    return CliRunner().invoke(prepare, [str(argument) for argument in arguments])


def refused(*arguments: object) -> str:
    result = run(*arguments)
    assert isinstance(result.exception, TaskError), result.output
    return str(result.exception)


def read(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@needs_data
def test_the_published_files_are_recognised_and_give_the_published_subset(tmp_path):
    result = run(tmp_path / "out", "--from", DATA)
    assert result.exit_code == 0 and "Accepted" not in result.output
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == OUTPUTS
    train = read(tmp_path / "out" / "train.jsonl")
    assert len(train) == 512
    assert [row["id"] for row in train[:3]] == ["1983-1", "1983-3", "1983-4"]
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text(encoding="utf-8"))
    assert all(source["as_published"] for source in manifest["sources"].values())
    registry = load_plugins(only=())
    paths = {"path": str(tmp_path / "out/train.jsonl"), "eval_path": str(tmp_path / "out/eval-aime-2025.jsonl")}
    tasks = registry.build("tasks", "file", registry.offer("tasks", "file").options(**paths))
    assert len(tasks.load("train")) == 512 and len(tasks.load("eval")) == 30


@needs_data
def test_other_formats_and_names_of_the_published_files_give_the_same_tasks(tmp_path):
    tables = {
        name: json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))
        for name in (f.name for f in PUBLISHED_FILES)
    }
    with (tmp_path / "AIME.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["ID", "Question", "Answer"])
        writer.writerows([row["id"], row["prompt"], row["answer"]] for row in tables["AIME_1983_2024"])
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(tables["amc"]), tmp_path / "some-name.parquet")
    lines = "".join(json.dumps(row) + "\n" for row in tables["aime_2025"])
    (tmp_path / "x.jsonl").write_text(lines, encoding="utf-8")
    names = [str(tmp_path / name) for name in ("AIME.csv", "some-name.parquet", "x.jsonl")]
    assert run(tmp_path / "out", *(part for name in names for part in ("--from", name))).exit_code == 0
    assert run(tmp_path / "plain", "--from", DATA).exit_code == 0
    for name in ("train.jsonl", "eval-amc.jsonl", "eval-aime-2025.jsonl"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "plain" / name).read_bytes()


def test_the_subset_is_the_one_of_seed_42_in_the_order_of_the_file():
    problems = [PublishedProblem(str(index), f"p{index}", "1") for index in range(933)]
    chosen = [int(problem.id) for problem in select_training_subset(problems)]
    assert chosen == sorted(set(chosen)) and len(chosen) == 512
    assert chosen[:10] == [0, 2, 3, 5, 6, 7, 9, 10, 11, 12]
    assert chosen[-5:] == [924, 927, 928, 930, 931]


def test_differences_are_refused_by_name_and_hash_and_nothing_is_written(tmp_path, copies):
    message = refused(tmp_path / "out", "--from", copies)
    assert message.count("the content differs from") == 3 and "expected 68ab5a6f" in message
    assert not (tmp_path / "out").exists()


def test_accepted_differences_are_said_and_kept_in_the_manifest(tmp_path, copies):
    (copies / "amc.json").write_text(json.dumps(made_up("amc", 5)), encoding="utf-8")
    result = run(tmp_path / "out", "--from", copies, "--accept-differences")
    assert result.exit_code == 0
    assert "Accepted:" in result.output and "5 problems, AMC as published has 117" in result.output
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["sources"]["amc"]["as_published"] is False
    assert manifest["files"]["eval-amc.jsonl"]["rows"] == 5
    assert "cannot be derived" in manifest["note"]


def test_a_problem_in_both_sets_is_refused_with_its_ids(tmp_path, copies):
    rows = made_up("aime_2025", 30)
    rows[3]["prompt"] = "  PROBLEM 0 of\nAIME_1983_2024? "
    (copies / "aime_2025.json").write_text(json.dumps(rows), encoding="utf-8")
    message = refused(tmp_path / "out", "--from", copies, "--accept-differences")
    assert "AIME_1983_2024-1 = aime_2025-4" in message and "eval-aime-2025.jsonl" in message
    assert not (tmp_path / "out").exists()


def test_what_is_missing_or_named_twice_or_unknown_is_refused(tmp_path, copies):
    (copies / "amc.json").unlink()
    assert "not found in" in refused(tmp_path, "--from", copies) and "amc.json, 117" in refused(
        tmp_path, "--from", copies
    )
    twice = refused(tmp_path, "--from", copies, "--from", copies / "aime_2025.json")
    assert "are both AIME 2025" in twice
    stranger = copies / "stranger.json"
    stranger.write_text(json.dumps(made_up("x", 3)), encoding="utf-8")
    assert "none of the published files" in refused(tmp_path, "--from", stranger)
    assert "no such file" in refused(tmp_path, "--from", copies / "nowhere.json")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": "x", "answer": "1"}, "row 1 .*no problem text in a column prompt or problem or question"),
        ({"prompt": "x"}, "row 1 .*no text or number in the column answer"),
        ({"prompt": "x", "answer": None}, "row 1 .*no text or number in the column answer"),
    ],
)
def test_a_bad_row_is_refused_with_its_place(copies, row, message):
    (copies / "amc.json").write_text(json.dumps([row]), encoding="utf-8")
    with pytest.raises(TaskError, match=f"amc.json, {message}"):
        find_sources([str(copies)])


def test_running_twice_is_harmless_and_other_peoples_files_are_left_alone(tmp_path, copies):
    files = make_files(find_sources([str(copies)]))
    out = tmp_path / "out"
    write_files(out, files)
    before = {path.name: path.stat().st_size for path in out.iterdir()}
    write_files(out, files)
    assert {path.name: path.stat().st_size for path in out.iterdir()} == before
    (out / "train.jsonl").write_text("mine", encoding="utf-8")
    with pytest.raises(TaskError, match=r"train\.jsonl is there with other content"):
        write_files(out, files)
    assert (out / "train.jsonl").read_text(encoding="utf-8") == "mine"


def test_a_folder_in_the_place_of_a_file_is_refused(tmp_path, copies):
    (tmp_path / "out" / "train.jsonl").mkdir(parents=True)
    with pytest.raises(TaskError, match=r"train\.jsonl is a folder; name another folder or move it away"):
        write_files(tmp_path / "out", make_files(find_sources([str(copies)])))


def test_a_folder_that_cannot_be_made_is_refused(tmp_path, copies):
    blocked = tmp_path / "file"
    blocked.write_text("", encoding="utf-8")
    with pytest.raises(TaskError, match="cannot be written"):
        write_files(blocked / "out", make_files(find_sources([str(copies)])))


def test_a_data_set_of_the_hub_is_a_source_too(tmp_path, copies, monkeypatch):
    datasets = pytest.importorskip("datasets", reason="the extra `data` is not installed")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()
    folder = tmp_path / "amc"
    folder.mkdir()
    rows = made_up("amc", 117)
    (folder / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (copies / "amc.json").unlink()
    sources = find_sources([str(copies), f"hf:{folder}:test"])
    assert [len(source.problems) for source in sources] == [933, 117, 30]


def test_the_hash_counts_content_and_not_format():
    one = [PublishedProblem("1", "What  is\n1+1?", "002")]
    same = [PublishedProblem(None, "What is 1+1?", "2.0")]
    other = [PublishedProblem("1", "What is 1+1?", "3")]
    assert content_sha256(one) == content_sha256(same) != content_sha256(other)


def test_overlap_compares_texts_and_not_ids():
    train = [{"id": "a", "prompt": "One?"}, {"id": "b", "prompt": "Two?"}]
    assert find_overlap(train, [{"id": "a", "prompt": "Three?"}]) == []
    assert find_overlap(train, [{"id": "z", "prompt": "two?"}]) == [("b", "z")]
