"""The embedded task source: what a task carries, and a cache that is never stale."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from mappa_core import ConfigError, Task, TaskError
from mappa_core.codec import from_json, to_json
from mappa_dsbench.cache_paths import check_out_of_reach, resolve_cache_folder
from mappa_dsbench.embedded import tasks as source
from mappa_dsbench.embedded.catalogue import CATALOGUE
from mappa_dsbench.embedded.facts import digest_files, load_facts
from mappa_dsbench.embedded.tasks import EmbeddedTasks
from mappa_dsbench.grading.grade import Anchors, grade_submission
from mappa_dsbench.grading.truth import read_truth
from mappa_dsbench.options import EmbeddedOptions
from mappa_dsbench.outcome import build_outcome
from mappa_dsbench.problem import Problem
from mappa_dsbench.table import Table, anchors_of_task, problem_of_task, table_of_task, table_to_meta

SMALL = {"train": 6, "eval": 4}


def load(folder: Path, split: str = "train") -> tuple[Task, ...]:
    return tuple(EmbeddedTasks(EmbeddedOptions(folder=str(folder), **SMALL)).load(split))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tables")


@pytest.fixture(scope="module")
def both(folder: Path) -> tuple[Task, ...]:
    return (*load(folder), *load(folder, "eval"))


def paths(task: Task) -> list[Path]:
    return [Path(path) for path in (*task.files.values(), task.reference)]


# Tasks


def test_each_split_has_its_tasks_of_both_strata_in_one_order(folder: Path, both: tuple[Task, ...]) -> None:
    assert both == (*load(folder), *load(folder, "eval"))
    assert [CATALOGUE[task.id].split for task in both] == ["training"] * 6 + ["held_out"] * 4
    assert (
        {task.stratum for task in both[:6]} == {task.stratum for task in both[6:]} == {"classification", "regression"}
    )
    assert not {task.cluster for task in both[:6]} & {task.cluster for task in both[6:]}


def test_all_tasks_are_there_by_default() -> None:
    everything = EmbeddedTasks(EmbeddedOptions(folder="unused"))
    assert [len(everything._chosen[split]) for split in ("train", "eval")] == [67, 35]


def test_files_are_those_of_the_catalogue_and_answers_lie_apart(folder: Path, both: tuple[Task, ...]) -> None:
    for task in both:
        assert digest_files(*(path.read_bytes() for path in paths(task))) == load_facts()[task.id].digest
        assert list(task.files) == ["train.csv", "test.csv", "sample_submission.csv"]
        assert all(path.is_relative_to(folder / "tables") for path in map(Path, task.files.values()))
        assert Path(task.reference).is_relative_to(folder / "answers")


def test_a_task_is_graded_by_what_it_carries(both: tuple[Task, ...]) -> None:
    for task in both:
        table = table_of_task(task)
        truth = read_truth(Path(task.reference), table.problem)
        whole = build_outcome(grade_submission(truth, table.anchors, Path(task.reference)), table)
        sample = build_outcome(grade_submission(truth, table.anchors, Path(task.files["sample_submission.csv"])), table)
        assert whole["success"] == sample["success"] == whole["fair_dummy"] == 1
        assert sample["fair_dummy"] < 0.6
        assert build_outcome(grade_submission(truth, table.anchors, None), table)["rejected_no_file"] == 1


def test_what_is_told_names_neither_data_set_nor_place(folder: Path, both: tuple[Task, ...]) -> None:
    for task in both:
        table = table_of_task(task)
        assert f"{table.problem.id_column},{','.join(table.problem.targets)}\n" in task.prompt
        assert task.cluster not in task.prompt
        assert str(folder) not in task.prompt
        assert str(folder) not in repr(task.meta)


def test_a_task_is_stored_and_read_back_whole(both: tuple[Task, ...]) -> None:
    for task in both:
        assert table_of_task(from_json(Task, to_json(task))) == table_of_task(task) == load_facts()[task.id].table


def test_a_number_of_tasks_that_is_none_is_refused(folder: Path) -> None:
    for options in ({"train": 0}, {"eval": 36}):
        with pytest.raises(ConfigError, match=r"tasks\.options\.(train|eval) is a number from 1 to (67|35)"):
            EmbeddedTasks(EmbeddedOptions(folder=str(folder), **options))


# The cache


def test_changed_or_deleted_tables_are_rebuilt(folder: Path, both: tuple[Task, ...]) -> None:
    spoiled, lost = both[0], both[1]
    before = [path.read_bytes() for path in (*paths(spoiled), *paths(lost))]
    paths(spoiled)[3].write_bytes(before[3].replace(b"0", b"1"))
    paths(lost)[1].unlink()
    assert load(folder) == both[:6]
    assert [path.read_bytes() for path in (*paths(spoiled), *paths(lost))] == before


def test_intact_tables_are_not_rebuilt(folder: Path, both: tuple[Task, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "_write_files", lambda *arguments: pytest.fail("made again"))
    assert load(folder) == both[:6]


def test_another_version_of_a_task_stands_in_another_place(
    folder: Path, both: tuple[Task, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = {name: replace(known, digest="0" * 64) for name, known in load_facts().items()}
    monkeypatch.setattr(source, "load_facts", lambda: other)
    with pytest.raises(TaskError, match="comes out otherwise than it should"):
        load(folder)
    assert not list(folder.glob("*/*-0000*"))


def test_tables_can_be_built_by_concurrent_processes(tmp_path: Path) -> None:
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda _: load(tmp_path, "eval"), range(6)))
    assert all(tasks == found[0] for tasks in found)
    assert all(
        digest_files(*(path.read_bytes() for path in paths(one))) == load_facts()[one.id].digest for one in found[0]
    )
    assert not list(tmp_path.rglob(".*"))


def test_only_this_user_can_look_into_the_answers(both: tuple[Task, ...]) -> None:
    *shown, answers = paths(both[0])
    assert (answers.stat().st_mode | answers.parent.stat().st_mode) & 0o077 == 0
    assert all(path.stat().st_mode & 0o777 == 0o644 for path in shown)


def test_the_folder_is_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert resolve_cache_folder(None) == tmp_path / "mappa" / "dsbench"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert resolve_cache_folder(None) == tmp_path / "home" / ".cache" / "mappa" / "dsbench"
    assert resolve_cache_folder("~/here") == tmp_path / "home" / "here"


def test_no_answers_where_programs_can_read() -> None:
    with pytest.raises(ConfigError, match=r"tasks\.options\.folder: .* programs of agents can read"):
        resolve_cache_folder(f"{sys.prefix}/cache")
    with pytest.raises(ConfigError, match=r"tasks\.options\.data"):
        check_out_of_reach(Path(sys.prefix, "lib"), "tasks.options.data")


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(TaskError, match=r"file/tables/.* cannot be written: .*tasks\.options\.folder"):
        load(tmp_path / "file")


# What a task carries


TABLE = Table(
    problem=Problem(
        name="t", kind="regression", metric="rmse", id_column="id", targets=("y",), labels=None, range=(0.0, 10.0)
    ),
    anchors=Anchors(dummy=4.0, perfect=0.0, paper=5.0),
    features=("a", "b"),
    missing=True,
    categorical=False,
    reference_score=2.0,
    published=(4.0, 0.0),
)


@pytest.mark.parametrize(
    "table",
    [
        TABLE,
        replace(TABLE, reference_score=None, published=None, anchors=Anchors(dummy=4.0, perfect=0.0, paper=None)),
        replace(TABLE, problem=replace(TABLE.problem, kind="classification", labels=("a", "b"), range=None)),
    ],
)
def test_meta_holds_all_of_a_table(table: Table) -> None:
    task = Task(id="t", prompt="", meta=table_to_meta(table))
    assert table_of_task(task) == table
    assert (problem_of_task(task), anchors_of_task(task)) == (table.problem, table.anchors)


def test_another_task_is_refused_with_what_to_choose() -> None:
    with pytest.raises(TaskError, match=r"'word-1' is no table .* lacks 'problem'; choose tasks\.use=dsbench-embedded"):
        table_of_task(Task(id="word-1", prompt="", meta={"plan": 1}))


def test_skill_lies_between_the_constant_guess_and_the_reference() -> None:
    assert [TABLE.skill(raw) for raw in (None, 5.0, 4.0, 3.0, 2.0, 0.0)] == [0, 0, 0, 0.5, 1, 1]
    assert replace(TABLE, reference_score=None).skill(3.0) is None
    assert replace(TABLE, reference_score=4.5).skill(3.0) is None


def test_far_above_the_reference_is_incredible() -> None:
    assert [TABLE.is_incredible(raw) for raw in (2.0, 0.3, 0.19, 0.1, 0.0)] == [False, False, True, True, True]
    assert not replace(TABLE, reference_score=0.3).is_incredible(0.0)
