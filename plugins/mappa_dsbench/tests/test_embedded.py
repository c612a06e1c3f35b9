"""The embedded tasks: what they hold, what they give away, and that they can be solved."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from io import BytesIO
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pandas.api.types import is_numeric_dtype
from scipy.stats import spearmanr

from mappa_core import TaskError
from mappa_dsbench.embedded.catalogue import CATALOGUE, EmbeddedTask, tasks_of_split
from mappa_dsbench.embedded.facts import compute_line, digest_files, load_facts
from mappa_dsbench.embedded.make_task import EmbeddedFiles, make_files
from mappa_dsbench.embedded.names import HELD_OUT_WORDS, TRAINING_WORDS, Draw
from mappa_dsbench.embedded.recipes import Recipe
from mappa_dsbench.embedded.reference import fit_submissions
from mappa_dsbench.embedded.sources import BLOCK_COLUMN, HIDDEN_PATHS, SOURCES, load_dataset
from mappa_dsbench.grading.grade import compute_anchors, grade_submission, normalise_score
from mappa_dsbench.grading.metrics import METRICS, problem_kind
from mappa_dsbench.grading.truth import read_truth
from mappa_dsbench.table import MIN_CLOSED_SHARE, MIN_ROOM_ABOVE_REFERENCE, table_from_meta

MEGABYTE = 1_000_000
EVERY = pytest.mark.parametrize("dataset", list(SOURCES))


def names_of(dataset: str) -> list[str]:
    """The tasks that are cut from a data set."""
    return [task.name for task in CATALOGUE.values() if task.dataset == dataset]


@cache
def made(name: str) -> EmbeddedFiles:
    return CATALOGUE[name].make_files()


@cache
def original(dataset: str) -> pd.DataFrame:
    return load_dataset(dataset)


@cache
def read(table: bytes) -> pd.DataFrame:
    """Shared by the tests: not to be changed."""
    return pd.read_csv(BytesIO(table))


@cache
def texts(table: bytes) -> pd.DataFrame:
    return pd.read_csv(BytesIO(table), dtype=str, keep_default_na=False)


def words_of(name: str) -> set[str]:
    """Every name in a task's files: of columns, and of the values of columns of text, ids aside."""
    train = read(made(name).train)
    columns = [column for column in train.columns[1:] if not is_numeric_dtype(train[column])]
    return set(train.columns) | {value for column in columns for value in train[column].dropna()}


# What there is


def test_there_are_enough_tasks_of_both_strata_in_both_splits() -> None:
    counted = {
        (split, kind): sum(task.kind == kind for task in tasks_of_split(split))
        for split in ("training", "held_out")
        for kind in ("classification", "regression")
    }
    assert len(tasks_of_split("training")) >= 40
    assert len(tasks_of_split("held_out")) >= 24
    assert min(counted["training", "classification"], counted["training", "regression"]) >= 20
    assert min(counted["held_out", "classification"], counted["held_out", "regression"]) >= 12


def test_held_out_data_sets_never_occur_in_training() -> None:
    training, held_out = ({task.dataset for task in tasks_of_split(split)} for split in ("training", "held_out"))
    assert not training & held_out
    assert len(held_out) >= 8
    assert training | held_out == set(SOURCES)


def test_names_of_tasks_tell_nothing() -> None:
    assert all(re.fullmatch(r"table-[0-9a-f]{8}", name) for name in CATALOGUE)


def test_held_out_names_are_never_seen_in_training() -> None:
    assert not set(TRAINING_WORDS) & set(HELD_OUT_WORDS)
    training, held_out = (
        {word for task in tasks_of_split(split) for word in words_of(task.name)} for split in ("training", "held_out")
    )
    assert not training & held_out


def test_a_training_category_may_be_missing_from_the_test_part() -> None:
    def differs(task: EmbeddedTask) -> bool:
        train, test = read(made(task.name).train), read(made(task.name).test)
        columns = [column for column in test.columns[1:] if not is_numeric_dtype(train[column])]
        return any(set(train[column].dropna()) != set(test[column].dropna()) for column in columns)

    assert any(map(differs, tasks_of_split("training")))
    assert any(map(differs, tasks_of_split("held_out")))


def test_missing_values_occur_in_both_strata_of_both_splits() -> None:
    gaps = {(task.split, task.kind) for task in CATALOGUE.values() if read(made(task.name).train).isna().any().any()}
    assert len(gaps) == 4


# Every task


@EVERY
def test_the_files_fit_each_other_and_the_problem(dataset: str) -> None:
    for name in names_of(dataset):
        task = made(name)
        problem = task.problem
        train, test, sample, answer = map(texts, (task.train, task.test, task.sample, task.answer))
        assert (problem.name, problem.kind) == (name, problem_kind(problem.metric))
        assert list(train.columns) == [*test.columns, *problem.targets]
        assert list(answer.columns) == list(sample.columns) == [problem.id_column, *problem.targets]
        assert list(answer[problem.id_column]) == list(test[problem.id_column]) == list(sample[problem.id_column])
        assert 0.3 <= len(test) / (len(test) + len(train)) <= 0.42
        assert len(test) >= 25
        assert max(map(len, (task.train, task.test, task.answer))) < MEGABYTE
        if problem.labels is not None:
            assert set(problem.labels) == set(train[problem.targets[0]]) >= set(answer[problem.targets[0]])
        if problem.range is not None:
            values = read(task.train)[list(problem.targets)]
            assert problem.range == (values.min().min(), values.max().max())


@EVERY
def test_ids_are_unique_and_say_nothing(dataset: str) -> None:
    for name in names_of(dataset):
        task = made(name)
        train, test, answer = map(read, (task.train, task.test, task.answer))
        ids = pd.concat([train, test])[task.problem.id_column]
        assert ids.is_unique
        known = pd.concat([train[list(task.problem.targets)], answer[list(task.problem.targets)]])
        assert weak(ids.astype(str).rank(), known.iloc[:, 0])


@EVERY
def test_the_order_of_rows_says_nothing(dataset: str) -> None:
    for name in names_of(dataset):
        task = made(name)
        for table in map(read, (task.train, task.answer)):
            assert weak(pd.Series(range(len(table))), table[task.problem.targets[0]])


def weak(one: pd.Series, other: pd.Series) -> bool:
    """Whether two columns are no more alike than chance makes them in one case of 10,000."""
    rank = other.rank() if is_numeric_dtype(other) else other.astype("category").cat.codes
    return abs(spearmanr(one, rank).statistic) < 4 / len(rank) ** 0.5


@EVERY
def test_no_name_of_the_data_set_is_in_the_files(dataset: str) -> None:
    for name in names_of(dataset):
        task = CATALOGUE[name]
        frame = original(task.dataset)
        columns = {str(column).lower() for column in frame.columns} - {BLOCK_COLUMN}
        values = {
            str(value).lower()
            for column in frame.columns
            if not is_numeric_dtype(frame[column])
            for value in frame[column].dropna().unique()
        }
        words = {part for word in words_of(name) for part in (word.lower(), *word.lower().split("_"))}
        assert not words & (columns | values - {"id"})


@EVERY
def test_no_feature_is_the_answer(dataset: str) -> None:
    for name in names_of(dataset):
        task = made(name)
        train = read(task.train)
        for target in task.problem.targets:
            for column in train.columns[1 : -len(task.problem.targets)]:
                assert tells_less(train[column], train[target]), f"{column} gives {target} away"


def tells_less(column: pd.Series, target: pd.Series) -> bool:
    pairs = pd.DataFrame({"column": column, "target": target}).dropna()
    if pairs["target"].nunique() == 1:
        # Known in rows of one label only: that tells of these rows, as in life, and leaves the others open.
        return len(pairs) < len(target) / 2
    if is_numeric_dtype(column) and is_numeric_dtype(target):
        return column.nunique() == 1 or abs(column.corr(target)) < 0.999
    if is_numeric_dtype(target) and target.nunique() > 20:
        return True
    decided = pairs.groupby("column")["target"].nunique()
    return bool((decided > 1).any()) or len(decided) > len(pairs) / 3


@EVERY
def test_shipped_facts_of_tasks_are_true(dataset: str) -> None:
    for name in names_of(dataset):
        task, known = made(name), load_facts()[name]
        assert digest_files(task.train, task.test, task.sample, task.answer) == known.digest
        assert known.table.problem == task.problem
        assert known.test_rows == len(read(task.answer))
        assert list(known.table.features) == list(read(task.test).columns[1:])


@EVERY
def test_a_reference_beats_the_dummy_and_perfection_can_be_told(dataset: str) -> None:
    for name in names_of(dataset):
        table = load_facts()[name].table
        assert table.reference_score is not None
        reached = normalise_score(table.reference_score, table.anchors.dummy, table.anchors.perfect)
        assert reached > 0.05
        assert table.skill(table.reference_score) == 1
        assert table.skill(table.anchors.dummy) == table.skill(None) == 0
        assert not table.is_incredible(table.reference_score)
        assert table.is_incredible(METRICS[table.problem.metric].perfect) == (1 - reached >= MIN_ROOM_ABOVE_REFERENCE)


def test_facts_exist_for_exactly_the_known_tasks() -> None:
    assert list(load_facts()) == list(CATALOGUE)


@pytest.mark.parametrize("dataset", ["iris", "engel", "penguins", "cars"])
def test_facts_are_as_they_would_be_computed(dataset: str) -> None:
    name = next(task.name for task in CATALOGUE.values() if task.dataset == dataset)
    line, known = compute_line(name), load_facts()[name]
    fresh = table_from_meta(line["table"])
    # A forest is not the same in all versions of scikit-learn.
    assert fresh.reference_score == pytest.approx(known.table.reference_score, rel=0.05)
    assert replace(fresh, reference_score=None) == replace(known.table, reference_score=None)
    assert (line["digest"], line["test_rows"]) == (known.digest, known.test_rows)


# Properties of the procedure


def test_whole_blocks_stay_on_one_side() -> None:
    frame = pd.DataFrame(
        {"day": range(400), "value": [at % 7 for at in range(400)], BLOCK_COLUMN: [at // 20 for at in range(400)]}
    )
    recipe = Recipe(dataset="made up", targets=("value",), metric="rmse")
    task = make_files(frame, recipe, name="table-0", words=TRAINING_WORDS)
    day = next(name for name, column in task.columns.items() if column == "day")
    train, test = ({at // 20 for at in read(table)[day]} for table in (task.train, task.test))
    assert train
    assert test
    assert not train & test


def test_missing_values_and_numbers_stay_as_they_are() -> None:
    frame = pd.DataFrame({"a": [0.1, None, 3.0] * 40, "kind": ["p", None, "q"] * 40, "y": range(120)})
    task = make_files(frame, Recipe(dataset="made up", targets=("y",), metric="mae"), name="t", words=TRAINING_WORDS)
    names = {column: name for name, column in task.columns.items()}
    table = pd.concat([read(task.train), read(task.test).merge(read(task.answer))]).sort_values(names["y"])
    assert list(table[names["y"]]) == list(range(120))
    assert table[names["a"]].isna().equals(table[names["kind"]].isna())
    assert set(table[names["a"]].dropna()) == {0.1, 3.0}
    assert table[names["kind"]].nunique() == 2


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(dataset="made up", targets=("absent",), metric="mae"),
        Recipe(dataset="made up", targets=("y",), metric="mae", drop=("absent",)),
        Recipe(dataset="made up", targets=("y",), metric="mae", columns=("absent",)),
    ],
)
def test_a_recipe_for_other_columns_is_refused(recipe: Recipe) -> None:
    with pytest.raises(TaskError, match="no column absent"):
        make_files(pd.DataFrame({"x": range(50), "y": range(50)}), recipe, name="t", words=TRAINING_WORDS)


def test_a_label_that_training_lacks_is_refused() -> None:
    frame = pd.DataFrame({"x": range(60), "y": ["a", "b"] * 29 + ["c", "d"], BLOCK_COLUMN: [0] * 30 + [1] * 30})
    late = frame.assign(**{BLOCK_COLUMN: frame.index // 2})
    recipe = Recipe(dataset="made up", targets=("y",), metric="accuracy")
    with pytest.raises(TaskError, match="occur in no row of the training table"):
        for seed in range(50):
            make_files(late, recipe, name=f"t{seed}", words=TRAINING_WORDS)


@given(st.text(max_size=20), st.integers(0, 200))
def test_an_order_is_a_permutation_and_hangs_on_its_seed_alone(seed: str, length: int) -> None:
    order = Draw(seed).order("rows", length)
    assert sorted(order) == list(range(length))
    assert order == Draw(seed).order("rows", length)


def test_draws_are_the_same_everywhere() -> None:
    assert Draw("seed").order("rows", 8) == [7, 4, 1, 2, 3, 6, 0, 5]


# Where the answers could be found


def test_every_file_that_is_read_is_hidden() -> None:
    files = [file for source in SOURCES.values() for file in source.files]
    assert all(any(file.startswith(f"{place}/") for place in HIDDEN_PATHS) for file in files)


def test_an_unknown_data_set_is_an_error_that_names_the_known_ones() -> None:
    with pytest.raises(TaskError, match=r"no embedded data set 'titanic'; there are: breast, wine"):
        load_dataset("titanic")


def test_a_package_that_is_not_installed_is_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mappa_dsbench.embedded.sources.find_spec", lambda package: None)
    with pytest.raises(TaskError, match=r"palmerpenguins/data/penguins\.csv, which is not installed"):
        load_dataset("penguins")


def test_a_changed_file_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    changed = tmp_path / "penguins.csv"
    changed.write_text("species,island\nAdelie,Dream\n")
    monkeypatch.setattr("mappa_dsbench.embedded.sources._locate", lambda file, name: changed)
    with pytest.raises(TaskError, match="'penguins' is not the one of which tasks are made"):
        load_dataset("penguins")


def test_scores_far_above_the_reference_are_incredible() -> None:
    table = load_facts()[next(task.name for task in tasks_of_split("training") if task.dataset == "diabetes")].table
    perfect, known = table.anchors.perfect, table.reference_score
    assert known is not None
    assert table.is_incredible(perfect + (known - perfect) * (1 - MIN_CLOSED_SHARE) * 0.9)
    assert not table.is_incredible(perfect + (known - perfect) * (1 - MIN_CLOSED_SHARE) * 1.1)
    assert not replace(table, reference_score=None).is_incredible(perfect)


def test_neither_the_sample_nor_a_copy_of_the_training_targets_is_worth_anything() -> None:
    copies = []
    for name, facts in load_facts().items():
        table = made(name)
        truth, anchors = read_truth(table.answer, table.problem), facts.table.anchors
        assert grade_submission(truth, anchors, table.sample).normalised == 0.0, name
        targets, ids = read(table.train)[list(table.problem.targets)], read(table.test)[table.problem.id_column]
        copied = targets.iloc[[row % len(targets) for row in range(len(ids))]].set_axis(ids.index)
        copied.insert(0, table.problem.id_column, ids)
        copies.append(grade_submission(truth, anchors, copied.to_csv(index=False).encode()).normalised)
    assert sum(copies) / len(copies) < 0.02  # chance: a copy is above the dummy of some small tables


def test_every_submission_of_the_references_is_graded() -> None:
    for task in tasks_of_split("held_out")[:2]:
        table = made(task.name)
        truth = read_truth(table.answer, table.problem)
        found = fit_submissions(table)
        assert set(found) == {"linear", "forest"}
        assert all(
            grade_submission(truth, compute_anchors(truth, read(table.train)), value).success
            for value in found.values()
        )
