"""What may be handed in, and that each thing that may not is rejected with its own reason."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mappa_core import TaskError, ToolError
from mappa_dsbench.grading.submission import Rejection, RejectionReason, Submission, check_problem, read_submission
from mappa_dsbench.problem import Problem

IDS = ("7", "8", "9")
NUMBERS = Problem(name="n", kind="regression", metric="rmse", id_column="id", targets=("y",), range=(0.0, 1.0))
LABELS = Problem(name="l", kind="classification", metric="accuracy", id_column="id", targets=("y",), labels=("a", "b"))


def problem(metric: str, *labels: str, targets: tuple[str, ...] = ("y",)) -> Problem:
    kind = "classification" if labels else "regression"
    return Problem(name="p", kind=kind, metric=metric, id_column="id", targets=targets, labels=labels or None)


def table(*cells: str, header: str = "id,y", ids: tuple[str, ...] = IDS) -> bytes:
    return "\n".join([header, *(f"{one},{cell}" for one, cell in zip(ids, cells, strict=True)), ""]).encode()


def accepted(source: Path | bytes | None, of: Problem, ids: tuple[str, ...] = IDS, **more: Any) -> Submission:
    read = read_submission(source, of, ids, **more)
    assert isinstance(read, Submission), read
    return read


def reason(
    source: Path | bytes | None, of: Problem = NUMBERS, ids: tuple[str, ...] = IDS, **more: Any
) -> RejectionReason:
    read = read_submission(source, of, ids, **more)
    assert isinstance(read, Rejection)
    assert read.detail and "\n" not in read.detail and len(read.detail) < 1000
    return read.reason


GOOD = table("1", "2.5", "-3e2")

TABLES: list[tuple[str, bytes | None, RejectionReason]] = [
    ("none", None, "no_file"),
    ("empty", b"", "unreadable"),
    ("blank lines", b"\n\r\n\n", "unreadable"),
    ("byte order mark alone", b"\xef\xbb\xbf", "unreadable"),
    ("null bytes", GOOD + b"\0", "unreadable"),
    ("utf-16", GOOD.decode().encode("utf-16"), "unreadable"),
    ("latin-1 header", b"id,\xe4\n7,1\n8,1\n9,1\n", "unreadable"),
    ("latin-1 cell", b"id,y\n7,\xe4\n8,1\n9,1\n", "unreadable"),
    ("open quote", b'id,y\n7,1\n8,"1\n9,1\n', "unreadable"),
    ("open quote in the header", b'id,"y\n7,1\n', "unreadable"),
    ("ragged row", b"id,y\n7,1\n8,1,1\n9,1\n", "unreadable"),
    ("header twice", b"id,y\nid,y\n7,1\n8,1\n9,1\n", "unreadable"),
    ("file twice", GOOD + GOOD, "unreadable"),
    ("text", b"The predictions are 1, 2.5 and -300.", "columns"),
    ("json", b'{"id": [7, 8, 9], "y": [1, 2, 3]}', "columns"),
    ("no header", b"7,1\n8,1\n9,1\n", "columns"),
    ("wrong header", table("1", "2", "3", header="id,prediction"), "columns"),
    ("other case", table("1", "2", "3", header="ID,y"), "columns"),
    ("swapped header is read as such", table("1", "2", "3", header="y,id"), "id_mismatch"),
    ("row numbers kept", b",id,y\n0,7,1\n1,8,2\n2,9,3\n", "columns"),
    ("extra column", b"id,y,z\n7,1,1\n8,2,1\n9,3,1\n", "columns"),
    ("duplicate column", b"id,y,y\n7,1,1\n8,2,1\n9,3,1\n", "columns"),
    ("duplicate id column", b"id,id\n7,1\n8,2\n9,3\n", "columns"),
    ("semicolons", b"id;y\n7;1\n8;2\n9;3\n", "columns"),
    ("header only", b"id,y\n", "row_count"),
    ("one row", b"id,y\n7,1\n", "row_count"),
    ("a row too many", GOOD + b"10,1\n", "row_count"),
    ("train columns and rows", b"id,y\n" + b"".join(b"%d,1\n" % one for one in range(50)), "row_count"),
    ("id twice", table("1", "2", "3", ids=("7", "8", "8")), "dup_id"),
    ("id twice, written differently", table("1", "2", "3", ids=("7", "8", "8.0")), "dup_id"),
    ("ids by row number", table("1", "2", "3", ids=("0", "1", "2")), "id_mismatch"),
    ("ids missing", table("1", "2", "3", ids=("7", "8", "")), "id_mismatch"),
    ("ids broken", table("1", "2", "3", ids=("7", "8", "8.5")), "id_mismatch"),
    ("empty cell", table("1", "", "3"), "missing"),
    ("short row", b"id,y\n7,1\n8\n9,1\n", "missing"),
    ("all nan", table("nan", "NaN", "NA"), "missing"),
    ("infinite", table("1", "-inf", "3"), "missing"),
    ("overflow", table("1", "1e999", "3"), "missing"),
    ("a word", table("1", "high", "3"), "dtype"),
    ("a comma", table("1", '"2,5"', "3"), "dtype"),
    ("an underscore", table("1", "1_000", "3"), "dtype"),
    ("hexadecimal", table("1", "0x10", "3"), "dtype"),
    ("a list", table("1", "[2]", "3"), "dtype"),
    ("a truth value", table("1", "True", "3"), "dtype"),
    ("other digits", table("1", "٣", "3"), "dtype"),
    ("a quoted line break", table("1", '"2\n"', "3").replace(b'2\n"', b'2\n1"'), "dtype"),
    ("a thousand digits", table("1", "9" * 5000, "3"), "missing"),
]


@pytest.mark.parametrize(("data", "expected"), [case[1:] for case in TABLES], ids=[case[0] for case in TABLES])
def test_hostile_tables(data: bytes | None, expected: RejectionReason) -> None:
    assert reason(data) == expected


def test_the_first_failing_check_is_the_reason() -> None:
    """Each table has the faults of all that come after it."""
    everything = [
        (b"id,y\n7,\xe4\n", "unreadable"),
        (b"id,z\n7,high\n", "columns"),
        (b"id,y\n7,\n7,high\n", "row_count"),
        (b"id,y\n5,\n5,high\n4,-2\n", "dup_id"),
        (b"id,y\n5,\n8,high\n4,-2\n", "id_mismatch"),
        (b"id,y\n7,\n8,high\n9,-2\n", "missing"),
        (b"id,y\n7,1\n8,high\n9,-2\n", "dtype"),
        (b"id,y\n7,1\n8,1\n9,-2\n", "range"),
    ]
    assert [reason(data, problem("rmsle")) for data, _ in everything] == [expected for _, expected in everything]


def test_a_good_table_is_read() -> None:
    read = accepted(GOOD, NUMBERS)
    assert read.values.tolist() == [[1.0], [2.5], [-300.0]]
    assert (read.n_clipped, read.degenerate) == (0, ())


@pytest.mark.parametrize(
    "data",
    [
        b"\xef\xbb\xbf" + GOOD,
        GOOD.replace(b"\n", b"\r\n"),
        GOOD.replace(b"\n", b"\r"),
        GOOD.rstrip(b"\n"),
        b"\n" + GOOD + b"\n\n",
        b'"id","y"\n"7","1"\n"8","2.5"\n"9","-300"\n',
        b" id , y \n 7 , 1 \n8.0,2.50\n9.,-300.0\n",
        b"y,id\n-300,9\n1,7\n2.5,8\n",
        b"id,y\n007,1\n+8,2.5\n9,-300\n",
    ],
)
def test_other_ways_to_write_the_same(data: bytes) -> None:
    assert accepted(data, NUMBERS).values.tolist() == [[1.0], [2.5], [-300.0]]


def test_ids_are_compared_by_what_they_are() -> None:
    cases = {
        ("2011-01-20 00:00:00", "2011-01-20 01:00:00"): ("2011-01-20", "2011-01-20T01:00"),
        ("0.0001", "2"): ("1e-4", "2.0"),
        ("0001_01", "2.0"): ("0001_01", " 2.0 "),
        ("9007199254740993", "9007199254740992"): ("9007199254740993.0", "9007199254740992"),
    }
    for ids, written in cases.items():
        assert accepted(table("1", "2", ids=written), NUMBERS, ids).values.tolist() == [[1.0], [2.0]]
    assert reason(table("1", "2", ids=("0001_01", "2")), NUMBERS, ("0001_01", "2.0")) == "id_mismatch"


def test_labels_are_compared_by_what_they_are() -> None:
    of = problem("accuracy", "True", "False")
    assert accepted(table("1", "0.0", "true"), of).values.tolist() == [["1"], ["0"], ["1"]]
    assert accepted(table("1.0", "2", " 3 "), problem("qwk", "1", "2", "3")).values.tolist() == [[1], [2], [3]]
    assert accepted(table("None", "NA", "a"), problem("accuracy", "None", "NA", "a")).degenerate == ()


@pytest.mark.parametrize(
    ("of", "cells", "expected"),
    [
        (LABELS, ("a", "b", "A"), "non_label"),
        (LABELS, ("a", "b", "None"), "missing"),
        (problem("accuracy", "0", "1"), ("0", "1", "0.5"), "non_label"),
        (problem("accuracy", "0", "1"), ("0", "1", "Yes"), "non_label"),
        (problem("qwk", "3", "4", "8"), ("-6", "-5", "-2"), "non_label"),
        (problem("qwk", "3", "4", "8"), ("3", "4", "5.5"), "non_label"),
        (problem("mae_cells"), ("0", "1", "0.5"), "non_label"),
        (problem("mae_cells"), ("0", "1", "2"), "non_label"),
        (problem("log_loss"), ("0.1", "0.2", "1.2"), "range"),
        (problem("log_loss"), ("0.1", "0.2", "-0.1"), "range"),
        (problem("rmsle"), ("-50", "-50", "2"), "range"),
        (problem("rmsle"), ("-1", "1", "2"), "range"),
        (problem("hit_at_3", "a", "b", "c", "d"), ("a b c", "a b", "a b c d"), "dtype"),
        (problem("hit_at_3", "a", "b", "c"), ("a b c", "a", "a,x"), "unreadable"),
        (problem("hit_at_3", "a", "b", "c"), ("a b c", "a", "a x"), "non_label"),
        (problem("hit_at_3", "a", "b", "c"), ("a b c", "a", ""), "missing"),
        (problem("roc_auc"), ("0.1", "nan", "0.4"), "missing"),
    ],
)
def test_values_that_a_metric_does_not_know(of: Problem, cells: tuple[str, ...], expected: RejectionReason) -> None:
    assert reason(table(*cells), of) == expected


def test_probabilities_of_a_row_add_up_to_one() -> None:
    of = problem("log_loss", targets=("a", "b", "c"))
    due = "id,a,b,c"
    for row in ("1,1,1", "0.9,0.9,0.9", "0.2,0.2,0.2"):
        assert reason(table(row, row, row, header=due), of) == "range"
    read = accepted(table("0.3333,0.3333,0.3333", "1,0,0", "0,0.5,0.5", header=due), of)
    assert read.values.sum(axis=1) == pytest.approx([1, 1, 1], abs=1e-12)


def test_counts_are_clipped_and_counted() -> None:
    read = accepted(table("-0.5", "-0.01", "3"), problem("rmsle"))
    assert (read.values.tolist(), read.n_clipped) == ([[0.0], [0.0], [3.0]], 2)


def test_any_real_number_ranks() -> None:
    assert accepted(table("-7", "1e3", "0"), problem("roc_auc")).values.tolist() == [[-7], [1000], [0]]


def test_text_may_be_empty_and_break_lines() -> None:
    read = accepted(table("", '"so, ""good""\nnow"', "nan"), problem("jaccard_words"))
    assert read.values.tolist() == [[""], ['so, "good"\nnow'], ["nan"]]


def test_constant_columns_are_named() -> None:
    of = problem("mcrmse", targets=("a", "b"))
    assert accepted(table("1,5", "2,5", "3,5.0", header="id,a,b"), of).degenerate == ("b",)


def test_a_header_may_not_fill_the_file() -> None:
    read = read_submission(b"id,y" + b"," * 5_000_000 + b"\n7,1\n", NUMBERS, IDS)
    assert read == Rejection("columns", "far more columns than 'id', 'y'")
    assert reason(b"x" * 5_000_000) == "unreadable"


def test_a_row_may_not_fill_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_table(*_: object, **__: object) -> None:
        raise AssertionError("the parser keeps every cell of the row")

    monkeypatch.setattr("mappa_dsbench.grading.submission.pd.read_csv", no_table)
    for row in (b"7" + b"," * 5_000_000, b'"7",' + b"1," * 2_000_000, b'7,"' + b'",' * 40_000):
        read = read_submission(b"id,y\n7,1\n" + row + b"\n", NUMBERS, IDS)
        assert read == Rejection("unreadable", "a row has more than 10,000 columns")


def test_a_cell_may_hold_many_commas() -> None:
    read = read_submission(GOOD.replace(b"\n", b'\n"7,' + b"," * 20_000 + b'",1\n', 1), NUMBERS, IDS)
    assert isinstance(read, Rejection) and read.reason == "row_count"


def test_the_size_is_bounded(tmp_path: Path) -> None:
    assert reason(GOOD, limit_bytes=len(GOOD) - 1) == "too_large"
    assert accepted(GOOD, NUMBERS, limit_bytes=len(GOOD)).n_clipped == 0
    path = tmp_path / "submission.csv"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # a hole: were it read, memory would end
    read = read_submission(path, NUMBERS, IDS)
    assert isinstance(read, Rejection) and read.reason == "too_large"
    assert read.detail.startswith(f"{1 << 40} bytes")


def test_only_a_regular_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "submission.csv"
    assert reason(path) == "no_file"
    path.write_bytes(GOOD)
    assert accepted(path, NUMBERS).values.tolist() == [[1.0], [2.5], [-300.0]]
    link = tmp_path / "link.csv"
    link.symlink_to(path)
    dangling = tmp_path / "dangling.csv"
    dangling.symlink_to(tmp_path / "nothing")
    fifo = tmp_path / "fifo.csv"
    os.mkfifo(fifo)
    folder = tmp_path / "folder.csv"
    folder.mkdir()
    for odd in (link, dangling, fifo, folder, Path("/dev/zero")):
        assert reason(odd) == "irregular", odd


def test_a_fault_of_the_machine_is_nobodys(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="cannot read the submission"):
        read_submission(tmp_path / ("x" * 300), NUMBERS, IDS)


def test_problems_that_contradict_themselves() -> None:
    for of, message in [
        (problem("accuracy2"), "unknown metric 'accuracy2'"),
        (problem("rmse", targets=("a", "b")), "not for 2 targets"),
        (problem("rmse", targets=()), "not for 0 targets"),
        (problem("rmse", targets=("id",)), "the same name"),
        (problem("accuracy"), "needs the labels"),
        (problem("qwk", "low", "high"), "integers"),
    ]:
        with pytest.raises(TaskError, match=message):
            check_problem(of)


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.integers(-(10**6), 10**6), st.floats(-1e9, 1e9)), min_size=2, unique_by=lambda row: row[0])
)
def test_the_order_of_rows_does_not_matter(rows: list[tuple[int, float]]) -> None:
    ids = tuple(str(one) for one, _ in rows)
    shuffled = random.Random(len(rows)).sample(rows, len(rows))
    data = "id,y\n" + "".join(f"{one},{value!r}\n" for one, value in shuffled)
    assert accepted(data.encode(), NUMBERS, ids).values[:, 0].tolist() == [value for _, value in rows]


@settings(max_examples=40)
@given(st.binary(max_size=60) | st.text(alphabet='idy,"\n\r 789.0-naé', max_size=60).map(str.encode))
def test_whatever_is_handed_in_is_read_or_rejected(data: bytes) -> None:
    for start in (b"", b"id,y\n", b"id,y\n7,1\n8,1\n"):
        assert isinstance(read_submission(start + data, NUMBERS, IDS), Submission | Rejection)
