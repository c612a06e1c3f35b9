"""What is found in the files that agents leave: every fault, and files that mean harm."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import subprocess
import sys
import traceback
import warnings
import zlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NoReturn

import joblib
import numpy as np
import pandas as pd
import pytest
import pytest_asyncio
from scipy import sparse
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.linear_model import LinearRegression, LogisticRegression, RidgeClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.svm import SVR

from mappa_core import Bench, TaskError, ToolError, ToolLimits, ToolResult
from mappa_core.sandbox import ProgramRun
from mappa_dsbench.contracts import FAULT_IS_HARD, Facts, inspect_files
from mappa_dsbench.contracts.check_submission import check_submission, read_ids, to_submission
from mappa_dsbench.contracts.run_probe import build_program, build_source
from mappa_dsbench.roles import ANALYST, DATA_ENGINEER, MODELER
from mappa_dsbench.table import problem_of_task
from mappa_sandbox.options import PythonOptions
from mappa_sandbox.tool import PythonTool

from .tables import TEST_ROWS, TRAIN_ROWS, Made, features, made

pytestmark = pytest.mark.asyncio(loop_scope="module")
PRELOAD = ["numpy", "pandas", "joblib", "scipy.sparse", "sklearn.ensemble", "sklearn.linear_model", "sklearn.pipeline"]
LIMITS = ToolLimits(wall_s=5, cpu_s=5, memory_bytes=1 << 30)


class Desk:
    """A bench for files that were made here and can be trusted: programs run in forks of this process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._runs = count()

    async def run(
        self, code: str, *, inputs: Mapping[str, Path], arguments: Sequence[str] = (), **rest: Any
    ) -> ProgramRun:
        folder = self._folder / f"desk{next(self._runs)}"
        folder.mkdir()
        for name, file in inputs.items():
            (folder / name).symlink_to(file)
        outputs = [self._folder / f"{folder.name}.{number}" for number in (1, 2)]
        pid = os.fork()
        if pid == 0:
            run_program(code, folder, arguments, outputs)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        found = {path.name: path for path in folder.iterdir() if not path.is_symlink()}
        stdout, stderr = (output.read_text() for output in outputs)
        result = ToolResult(tool="python", status="ok", exit_code=status, stdout=stdout, stderr=stderr)
        return ProgramRun(result=result, files=found)


def run_program(code: str, folder: Path, arguments: Sequence[str], outputs: Sequence[Path]) -> NoReturn:
    """Become a program; its outputs go to files."""
    try:
        for number, output in enumerate(outputs, 1):
            os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT), number)
        sys.stdout, sys.stderr = open(1, "w"), open(2, "w")  # noqa: SIM115
        os.chdir(folder)
        sys.argv = ["program", *arguments]
        warnings.simplefilter("ignore")
        exec(compile(code, "program", "exec"), {"__name__": "__main__"})
    except BaseException:  # noqa: BLE001 - as an interpreter does
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Desk(tmp_path)  # type: ignore[return-value]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cage(tmp_path_factory: pytest.TempPathFactory, build_bench: Callable[..., Bench]) -> AsyncIterator[Bench]:
    tool = PythonTool(PythonOptions(workers=1, preload=PRELOAD))
    archive = tmp_path_factory.mktemp("archive")
    yield build_bench(tool, LIMITS, archive)
    await tool.close()


@pytest.fixture(scope="module")
def pens(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Made]:
    """Tasks by their metric."""
    known: dict[str, Made] = {}
    return lambda metric: known.setdefault(metric, made(tmp_path_factory.mktemp(metric) / "task", metric))


@pytest.fixture
def left(tmp_path: Path) -> Callable[..., dict[str, Path]]:
    """Files as agents leave them: a value is pickled, bytes are written as they are."""
    numbers = count()

    def leave(**values: Any) -> dict[str, Path]:
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        files = {}
        for name, value in values.items():
            path = f"{name}.csv" if name == "submission" else f"{name}.pkl"
            (folder / path).write_bytes(value if isinstance(value, bytes) else pickle.dumps(value))
            files[path] = folder / path
        return files

    return leave


Leave = Callable[..., dict[str, Path]]
Pens = Callable[[str], Made]


def codes(facts: Facts) -> dict[str, str]:
    """Path of every fault by its code."""
    return {one["code"]: one["path"] for one in facts["faults"]}


async def engineered(bench: Bench, left: Leave, task: Made, **changed: Any) -> Facts:
    """What is found in careful features, some of them `changed`."""
    x_train, x_test = features(task)
    target = list(problem_of_task(task.task).targets)
    y_train = task.train[target].squeeze(axis="columns")
    files = left(**{"X_train": x_train, "y_train": y_train, "X_test": x_test, **changed})
    return await inspect_files(DATA_ENGINEER, task.task, files, bench)


async def modelled(bench: Bench, left: Leave, task: Made, model: Any, **changed: Any) -> Facts:
    x_train, x_test = features(task)
    y_train = task.train["ink"]
    files = left(**{"X_train": x_train, "y_train": y_train, "X_test": x_test, "model": model, **changed})
    return await inspect_files(MODELER, task.task, files, bench)


def classifier(task: Made) -> Any:
    return RandomForestClassifier(10, random_state=0).fit(features(task)[0], task.train["ink"])


def linear(task: Made) -> Any:
    return LinearRegression().fit(features(task)[0], task.train["ink"])


# Of the Data Engineer


@pytest.mark.parametrize("metric", ["accuracy", "roc_auc", "qwk", "mae"])
async def test_careful_features_have_no_fault(bench: Bench, left: Leave, pens: Pens, metric: str) -> None:
    facts = await engineered(bench, left, pens(metric))
    assert facts["faults"] == [] and not facts["hard"] and facts["probed"]
    assert facts["columns"] == ["age", "size", "acme"]
    assert (facts["rows_train"], facts["rows_test"], facts["target"]) == (TRAIN_ROWS, TEST_ROWS, "same")


def dump_by_joblib(frame: pd.DataFrame, compress: int = 0) -> bytes:
    """What `joblib.dump` writes, by a process of its own: where another test has imported dill (datasets does), the
    pickler that joblib extends writes dill's own types in this one."""
    program = "import io, joblib, pickle, sys\nframe, stored = pickle.load(sys.stdin.buffer), io.BytesIO()\n"
    program += "joblib.dump(frame, stored, compress=int(sys.argv[1]))\nsys.stdout.buffer.write(stored.getvalue())"
    command = [sys.executable, "-c", program, str(compress)]
    return subprocess.run(command, input=pickle.dumps(frame), capture_output=True, check=True).stdout


async def test_other_forms_of_sound_features(bench: Bench, left: Leave, pens: Pens) -> None:
    task = pens("accuracy")
    x_train, x_test = features(task)
    arrays = {"X_train": x_train.to_numpy(), "y_train": task.train["ink"].to_numpy(), "X_test": x_test.to_numpy()}
    matrices = {"X_train": sparse.csr_matrix(x_train.to_numpy()), "X_test": sparse.csr_matrix(x_test.to_numpy())}
    order = np.random.default_rng(1).permutation(TRAIN_ROWS)
    shuffled = {"X_train": x_train.iloc[order], "y_train": task.train["ink"].iloc[order]}
    by_id = {"X_train": x_train.set_index(task.train["pen_id"]), "X_test": x_test.set_index(task.test["pen_id"])}
    by_joblib = {"X_train": dump_by_joblib(x_train), "X_test": dump_by_joblib(x_test, compress=3)}
    gaps = {"X_train": x_train.set_axis(pd.array([None, *range(1, TRAIN_ROWS)], dtype="Int64"))}
    for changed in (arrays, matrices, shuffled, renumbered(shuffled), by_id, by_joblib, gaps):
        facts = await engineered(bench, left, task, **changed)
        assert facts["faults"] == [] and facts["target"] == "same", changed.keys()


@pytest.mark.parametrize(
    ("metric", "code"),
    [
        ("mae", np.log1p),
        ("accuracy", lambda y: y.map({"red": 2, "green": 0, "blue": 1})),
        ("qwk", lambda y: y - 2),
    ],
)
async def test_recoded_target_is_no_fault(
    bench: Bench, left: Leave, pens: Pens, metric: str, code: Callable[[Any], Any]
) -> None:
    facts = await engineered(bench, left, pens(metric), y_train=code(pens(metric).train["ink"]))
    assert facts["faults"] == [] and facts["target"] == "recoded"


NO_NUMBERS: Mapping[str, Any] = {
    "with a zone": pd.Timestamp("2026-01-01", tz="UTC"),
    "day": pd.Period("2026-01-01", "D"),
    "year": pd.Period("2026", "Y"),
    "complex": 1 + 2j,
    "category": pd.Categorical([pd.Timestamp("2026-01-01")] * TRAIN_ROWS),
}
"""Values of columns that no model of scikit-learn can be fitted to, though pandas makes numbers of them."""


def with_column(kind: str, task: Made) -> dict[str, Any]:
    return {"X_train": features(task)[0].assign(made=NO_NUMBERS[kind])}


def without(name: str) -> Callable[[pd.DataFrame], pd.DataFrame]:
    return lambda table: table.drop(columns=name)


@pytest.mark.parametrize(
    ("code", "path", "changes"),
    [
        ("unreadable", "X_train.pkl", lambda task: {"X_train": b"\x80\x04 nonsense"}),
        ("unreadable", "y_train.pkl", lambda task: {"y_train": b""}),
        ("not_a_table", "X_train.pkl", lambda task: {"X_train": {"age": [1, 2]}}),
        ("not_a_table", "X_test.pkl", lambda task: {"X_test": features(task)[1]["age"]}),
        ("not_a_table", "y_train.pkl", lambda task: {"y_train": 3}),
        ("not_a_table", "X_train.pkl", lambda task: {"X_train": features(task)[0][[]]}),
        ("not_a_table", "X_test.pkl", lambda task: {"X_test": np.empty((TEST_ROWS, 0))}),
        ("rows", "X_test.pkl", lambda task: {"X_test": features(task)[0]}),
        ("rows", "X_test.pkl", lambda task: {"X_test": features(task)[1].dropna().iloc[3:]}),
        ("rows", "X_test.pkl", lambda task: {"X_test": features(task)[1].sample(frac=1, random_state=0)}),
        ("rows", "y_train.pkl", lambda task: {"y_train": task.train["ink"].iloc[:-1]}),
        ("columns", "X_test.pkl", lambda task: {"X_test": features(task)[1].drop(columns="acme")}),
        ("columns", "X_test.pkl", lambda task: {"X_test": features(task)[1][["size", "age", "acme"]]}),
        ("columns", "X_test.pkl", lambda task: {"X_test": features(task)[1].to_numpy()[:, :2]}),
        ("target_inside", "X_train.pkl", lambda task: {"X_train": features(task)[0].assign(ink=task.train["ink"])}),
        ("target_inside", "X_train.pkl", lambda task: {"X_train": features(task)[0].assign(y=task.train["ink"])}),
        ("not_numeric", "X_train.pkl", lambda task: {"X_train": features(task)[0].assign(acme=task.train["maker"])}),
        *(("not_numeric", "X_train.pkl", partial(with_column, kind)) for kind in NO_NUMBERS),
        ("not_finite", "X_test.pkl", lambda task: {"X_test": features(task)[1].assign(size=task.test["size"])}),
        ("not_finite", "X_train.pkl", lambda task: {"X_train": features(task)[0].assign(age=np.inf)}),
        ("not_finite", "y_train.pkl", lambda task: {"y_train": task.train["ink"].where(task.train["age"] > 40)}),
        ("wrong_target", "y_train.pkl", lambda task: {"y_train": task.train["age"]}),
        ("wrong_target", "y_train.pkl", lambda task: {"y_train": task.train["ink"].sample(frac=1, random_state=0)}),
        ("wrong_target", "y_train.pkl", lambda task: {"y_train": (task.train["ink"] > 10).astype(int)}),
        ("wrong_target", "y_train.pkl", lambda task: {"y_train": -task.train["ink"]}),
        ("wrong_target", "y_train.pkl", lambda task: {"y_train": task.train[["ink", "age"]]}),
    ],
)  # fmt: skip
async def test_hard_faults_of_features(
    bench: Bench, left: Leave, pens: Pens, code: str, path: str, changes: Callable[[Made], Mapping[str, Any]]
) -> None:
    task = pens("mae")
    facts = await engineered(bench, left, task, **changes(task))
    assert codes(facts)[code] == path
    assert facts["hard"] and FAULT_IS_HARD[code]


async def test_a_column_for_a_label_of_the_target_gives_it_away(bench: Bench, left: Leave, pens: Pens) -> None:
    task = pens("accuracy")
    x_train, _ = features(task)
    for changed in (
        x_train.join(pd.get_dummies(task.train["ink"], prefix="ink")),
        x_train.assign(is_red=task.train["ink"] == "red"),
    ):
        assert "target_inside" in codes(await engineered(bench, left, task, X_train=changed))


def filled(task: Made, part: str, by: float) -> pd.DataFrame:
    return features(task)[part == "test"].assign(size=getattr(task, part)["size"].fillna(by))


@pytest.mark.parametrize(
    ("code", "path", "changes"),
    [
        ("id_inside", "X_train.pkl", lambda task: {"X_train": features(task)[0].assign(pen_id=task.train["pen_id"])}),
        ("refit_on_test", "X_test.pkl", lambda task: {"X_test": filled(task, "test", task.test["size"].median())}),
        ("refit_on_test", "X_test.pkl", lambda task: {"X_test": 3 * filled(task, "test", task.test["size"].mean())}),
        ("refit_on_test", "X_test.pkl", lambda task: named(*map(standardised, features(task)))),
        ("rows_dropped", "X_train.pkl", lambda task: rows_of(task, task.train["size"].notna())),
        ("rows_dropped", "X_train.pkl", lambda task: renumbered(rows_of(task, task.train["age"] > 45))),
    ],
)  # fmt: skip
async def test_soft_faults_of_features(
    bench: Bench, left: Leave, pens: Pens, code: str, path: str, changes: Callable[[Made], Mapping[str, Any]]
) -> None:
    task = pens("mae")
    facts = await engineered(bench, left, task, **changes(task))
    assert codes(facts)[code] == path
    assert not FAULT_IS_HARD[code] and (not facts["hard"] or code == "id_inside")


def rows_of(task: Made, kept: Any) -> dict[str, Any]:
    return {"X_train": features(task)[0][kept], "y_train": task.train["ink"][kept]}


def named(x_train: Any, x_test: Any) -> dict[str, Any]:
    return {"X_train": x_train, "X_test": x_test}


def renumbered(parts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: part.reset_index(drop=True) for name, part in parts.items()}


def standardised(table: pd.DataFrame) -> pd.DataFrame:
    return (table - table.mean()) / table.std(ddof=0)


async def test_rows_that_were_dropped_from_the_features_alone_have_the_wrong_target(
    bench: Bench, left: Leave, pens: Pens
) -> None:
    task = pens("mae")
    kept = rows_of(task, task.train["size"].notna())["X_train"]
    for x_train in (kept, kept.reset_index(drop=True)):
        facts = await engineered(bench, left, task, X_train=x_train, y_train=task.train["ink"].iloc[: len(kept)])
        assert codes(facts) == {"rows_dropped": "X_train.pkl", "wrong_target": "y_train.pkl"}


async def test_what_is_learned_from_the_training_rows_is_no_refit(bench: Bench, left: Leave, pens: Pens) -> None:
    task = pens("mae")
    scaler = StandardScaler().fit(features(task)[0])
    scaled = named(*(pd.DataFrame(scaler.transform(part), columns=part.columns) for part in features(task)))
    zeros = {"X_train": filled(task, "train", 0), "X_test": filled(task, "test", 0)}
    for changed in (scaled, zeros):
        assert (await engineered(bench, left, task, **changed))["faults"] == []


async def test_several_targets_are_compared_column_by_column(bench: Bench, left: Leave, tmp_path: Path) -> None:
    task = made(tmp_path / "two", "mcrmse", targets=("ink", "nib"))
    task.train["nib"] = task.train["ink"] * 2 + np.arange(TRAIN_ROWS)
    task.train.to_csv(task.task.files["train.csv"], index=False)
    assert (await engineered(bench, left, task))["faults"] == []
    for wrong in (task.train[["nib", "ink"]], task.train["ink"]):
        assert "wrong_target" in codes(await engineered(bench, left, task, y_train=wrong))


# Of the Modeler


async def test_a_sound_model_is_told_with_its_predictions(bench: Bench, left: Leave, pens: Pens) -> None:
    task = pens("roc_auc")
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(features(task)[0], task.train["ink"])
    facts = await modelled(bench, left, task, model)
    assert facts["faults"] == [] and facts["model"] == "LogisticRegression"
    assert facts["predictions"]["how"] == "predict_proba"
    expected = model.predict_proba(features(task)[1])[:, 1]
    assert np.allclose(np.array(facts["predictions"]["values"])[:, 0], expected, rtol=1e-5)


@pytest.mark.parametrize("metric", ["accuracy", "qwk", "log_loss", "mae"])
async def test_predictions_of_a_sound_model_are_accepted(bench: Bench, left: Leave, pens: Pens, metric: str) -> None:
    task = pens(metric)
    model = linear(task) if metric == "mae" else classifier(task)
    predictions = (await modelled(bench, left, task, model))["predictions"]
    problem = problem_of_task(task.task)
    ids = read_ids(Path(task.task.files["test.csv"]), "pen_id")
    submission = left(submission=to_submission(predictions["values"], problem, ids))["submission.csv"]
    found = check_submission(submission, problem, ids, predictions, recoded=False)
    assert found == {"faults": [], "reason": None, "faithful": True, "hard_labels": False}


async def test_models_of_joblib_and_with_functions_of_libraries_can_be_read(
    bench: Bench, left: Leave, pens: Pens
) -> None:
    task = pens("mae")
    stored = io.BytesIO()
    joblib.dump(RandomForestRegressor(5).fit(features(task)[0], task.train["ink"]), stored)
    logs = make_pipeline(FunctionTransformer(np.abs), LinearRegression()).fit(features(task)[0], task.train["ink"])
    for model in (stored.getvalue(), logs):
        assert (await modelled(bench, left, task, model))["faults"] == []


@pytest.mark.parametrize(
    ("metric", "code", "model"),
    [
        ("mae", "unreadable", lambda task: b"no pickle"),
        ("mae", "no_predict", lambda task: {"model": linear(task)}),
        ("mae", "no_predict", lambda task: StandardScaler().fit(features(task)[0])),
        ("mae", "predicts_badly", lambda task: LinearRegression()),
        ("mae", "predicts_badly", lambda task: LinearRegression().fit(task.train[["age"]], task.train["ink"])),
        ("mae", "predicts_badly", lambda task: broken_by(linear(task), coef_=np.array([np.nan, 1.0, 1.0]))),
        ("mae", "predicts_badly", lambda task: LinearRegression().fit(features(task)[0], task.train[["ink", "age"]])),
        ("mae", "wrong_kind", lambda task: RidgeClassifier().fit(features(task)[0], task.train["ink"] > 10)),
        ("qwk", "wrong_kind", lambda task: linear(task)),
        ("roc_auc", "wrong_kind", lambda task: SVR().fit(features(task)[0], task.train["ink"])),
        ("log_loss", "wrong_kind", lambda task: linear(task)),
    ],
)
async def test_hard_faults_of_models(
    bench: Bench, left: Leave, pens: Pens, metric: str, code: str, model: Callable[[Made], Any]
) -> None:
    task = pens(metric)
    facts = await modelled(bench, left, task, model(task))
    assert codes(facts) == {code: "model.pkl"}
    assert facts["hard"] and FAULT_IS_HARD[code]


def broken_by(model: Any, **state: Any) -> Any:
    vars(model).update(state)
    return model


async def test_a_model_that_only_decides_has_no_probabilities(bench: Bench, left: Leave, pens: Pens) -> None:
    task = pens("roc_auc")
    facts = await modelled(bench, left, task, RidgeClassifier().fit(features(task)[0], task.train["ink"]))
    assert codes(facts) == {"no_probabilities": "model.pkl"} and not facts["hard"]
    assert facts["predictions"]["how"] == "decision_function"


async def test_a_model_is_not_held_to_features_that_others_broke(bench: Bench, left: Leave, pens: Pens) -> None:
    task = pens("mae")
    other = features(task)[1].drop(columns="acme")
    facts = await modelled(bench, left, task, linear(task), X_test=other)
    assert facts["faults"] == [] and facts["predictions"] is None
    files = left(model=linear(task))
    assert (await inspect_files(MODELER, task.task, files, bench))["faults"] == []


async def test_predictions_of_very_many_rows_are_not_told(
    bench: Bench, left: Leave, pens: Pens, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mappa_dsbench.contracts.run_probe.MAX_VALUES", TEST_ROWS - 1)
    facts = await modelled(bench, left, pens("mae"), linear(pens("mae")))
    assert facts["faults"] == [] and facts["predictions"] == {"how": "predict", "values": None}


# Of the Analyst


async def analysed(bench: Bench, left: Leave, task: Made, table: Any, model: Any, **changed: Any) -> Facts:
    x_train, x_test = features(task)
    data = table.to_csv(index=False).encode() if isinstance(table, pd.DataFrame) else table
    files = left(
        **{"X_train": x_train, "y_train": task.train["ink"], "X_test": x_test, "model": model, **changed},
        submission=data,
    )
    return await inspect_files(ANALYST, task.task, files, bench)


def submitted(task: Made, values: Any) -> pd.DataFrame:
    return pd.DataFrame({"pen_id": task.test["pen_id"], "ink": values})


@pytest.mark.parametrize(
    ("reason", "table"),
    [
        ("unreadable", lambda good: b"\x00\x01"),
        ("columns", lambda good: good.rename(columns={"ink": "prediction"})),
        ("row_count", lambda good: good.head(1)),
        ("dup_id", lambda good: good.assign(pen_id=1000)),
        ("id_mismatch", lambda good: good.assign(pen_id=range(TEST_ROWS))),
        ("missing", lambda good: good.assign(ink=np.nan)),
        ("dtype", lambda good: good.assign(ink="much")),
    ],
)
async def test_why_a_submission_is_rejected(
    bench: Bench, left: Leave, pens: Pens, reason: str, table: Callable[[pd.DataFrame], Any]
) -> None:
    task = pens("mae")
    model = linear(task)
    facts = await analysed(bench, left, task, table(submitted(task, model.predict(features(task)[1]))), model)
    assert facts["reason"] == reason and codes(facts) == {reason: "submission.csv"}
    assert facts["hard"] and facts["faithful"] is None


@pytest.mark.parametrize(
    ("metric", "predicted", "fault"),
    [
        ("mae", lambda model, task: model.predict(features(task)[1]), None),
        ("mae", lambda model, task: model.predict(features(task)[1]).clip(5, 20).round(2), None),
        ("mae", lambda model, task: model.predict(features(task)[0])[:TEST_ROWS], "unfaithful"),
        ("mae", lambda model, task: np.roll(model.predict(features(task)[1]), 1), "unfaithful"),
        ("mae", lambda model, task: model.predict(features(task)[1]) * 2, "unfaithful"),
        ("mae", lambda model, task: np.full(TEST_ROWS, 9.0), "unfaithful"),
        ("accuracy", lambda model, task: model.predict(features(task)[1]), None),
        ("accuracy", lambda model, task: model.predict(features(task)[1])[::-1], "unfaithful"),
        ("roc_auc", lambda model, task: model.predict_proba(features(task)[1])[:, 1], None),
        ("roc_auc", lambda model, task: model.predict_proba(features(task)[1])[:, 0], "unfaithful"),
        ("roc_auc", lambda model, task: model.predict(features(task)[1]), "hard_labels"),
        ("log_loss", lambda model, task: model.predict_proba(features(task)[1])[:, 1].round(3), None),
        ("log_loss", lambda model, task: model.predict(features(task)[1]), "hard_labels"),
    ],
)
async def test_a_submission_is_held_against_the_model(
    bench: Bench, left: Leave, pens: Pens, metric: str, predicted: Callable[[Any, Made], Any], fault: str | None
) -> None:
    task = pens(metric)
    model = linear(task) if metric == "mae" else classifier(task)
    facts = await analysed(bench, left, task, submitted(task, predicted(model, task)), model)
    assert codes(facts) == ({} if fault is None else {fault: "submission.csv"})
    assert facts["reason"] is None and not facts["hard"]
    assert facts["faithful"] is (fault != "unfaithful") and facts["hard_labels"] is (fault == "hard_labels")


async def test_a_submission_may_undo_what_the_target_was_recoded_by(bench: Bench, left: Leave, pens: Pens) -> None:
    task = pens("mae")
    logs = np.log1p(task.train["ink"])
    model = LinearRegression().fit(features(task)[0], logs)
    undone = submitted(task, np.expm1(model.predict(features(task)[1])))
    assert codes(await analysed(bench, left, task, undone, model, y_train=logs)) == {}
    named = pens("accuracy")
    coded = named.train["ink"].map({"blue": 0, "green": 1, "red": 2})
    model = RandomForestClassifier(10, random_state=0).fit(features(named)[0], coded)
    words = np.array(["blue", "green", "red"])[model.predict(features(named)[1])]
    assert codes(await analysed(bench, left, named, submitted(named, words), model, y_train=coded)) == {}


async def test_whether_a_submission_is_faithful_is_not_told_without_a_model(
    bench: Bench, left: Leave, pens: Pens
) -> None:
    task = pens("roc_auc")
    facts = await analysed(bench, left, task, submitted(task, 0.5), b"no model")
    assert facts["faults"] == [] and facts["faithful"] is None and facts["hard_labels"] is None


# Files that mean harm


class Call:
    """Calls something when it is opened."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self._call = (function, arguments)

    def __reduce__(self) -> Any:
        return self._call


FORGED = json.dumps({"faults": [], "model": "Perfect", "predictions": None})


def harmful(mark: Path) -> list[bytes]:
    """Files that do something when they are opened; it would leave `mark`, or end or deceive the program."""
    return [
        pickle.dumps(Call(os.system, f"touch {mark}")),
        pickle.dumps(Call(eval, f"open({str(mark)!r}, 'w')")),
        pickle.dumps(Call(exec, "while True: pass")),
        pickle.dumps(Call(bytearray.__mul__, bytearray(b"x"), 10 << 30)),
        pickle.dumps(Call(Path.write_text, Path("found.json"), FORGED)),
        pickle.dumps(Call(pd.read_pickle, "train.csv")),
        pickle.dumps(Call(np.save, "found.json", np.zeros(3))),
        f"cposix\nsystem\n(S'touch {mark}'\ntR.".encode(),
        b"cpandas.io.common\nos\n.",
        b"c__main__\nReport\n.",
        b"\x80\x04\x8c\x06pandas\x8c\x11DataFrame.to_json\x93.",
        b"\x80\x04]" + b"]" * 300_000,
    ]


@pytest.mark.parametrize("first", [0, 3, 6, 9])
async def test_files_that_do_more_than_hold_data_are_unreadable(
    cage: Bench, left: Leave, pens: Pens, tmp_path: Path, first: int
) -> None:
    mark = tmp_path / "mark"
    three = dict(zip(("X_train", "y_train", "X_test"), harmful(mark)[first : first + 3], strict=True))
    facts = await engineered(cage, left, pens("mae"), **three)
    assert [(one["path"], one["code"]) for one in facts["faults"]] == [(f"{name}.pkl", "unreadable") for name in three]
    assert not mark.exists()


async def test_a_model_that_does_more_than_hold_data_is_unreadable(
    cage: Bench, left: Leave, pens: Pens, tmp_path: Path
) -> None:
    facts = await modelled(cage, left, pens("mae"), harmful(tmp_path / "mark")[0])
    assert codes(facts) == {"unreadable": "model.pkl"} and "posix.system" in facts["faults"][0]["detail"]
    assert not (tmp_path / "mark").exists()


def rebuilt(kind: str, name: str, state: Any) -> bytes:
    """A file that makes an object without its constructor and gives it a state."""
    made = f"ccopyreg\n_reconstructor\n(c{kind}\n{name}\ncbuiltins\nobject\nNtR".encode()
    return made + pickle.dumps(state, protocol=0)[:-1] + b"b."


def called(module: str, name: str, *arguments: Any) -> bytes:
    """A file that calls a function by its name, and goes on with what it returns."""
    given = pickle.dumps(arguments, protocol=0)[:-1]
    return f"c{module}\n{name}\n".encode() + given + b"R."


ENDS = f"import os, pathlib; pathlib.Path('found.json').write_text({FORGED!r}); os._exit(0)"
"""What forges a report and ends before the true one is written."""
SHAPES = "x, **k):\n  pass\n" + ENDS + "\ndef f(x"


def red_team() -> dict[str, bytes]:
    """Ways to write the report oneself that hold to names of installed libraries, and few of which name what is bad."""
    squeezed = io.BytesIO()
    joblib.dump(np.array([Call(exec, ENDS)], dtype=object), squeezed)
    forged = np.frombuffer(FORGED.encode(), dtype=np.uint8)
    target = Call(np.memmap, "found.json", np.dtype("u1"), "w+", 0, forged.shape)
    return {
        "a class of scipy that makes a function of a text": rebuilt(
            "scipy.stats._distn_infrastructure", "rv_continuous", {"shapes": SHAPES, "_ctor_param": {}}
        ),
        "a maker of functions": called("scipy._lib.decorator", "FunctionMaker", None, "f", "x", None, None, None, ENDS),
        "a wrapper of solvers": called("scipy.optimize._nonlin", "_nonlin_wrapper", "f", None),
        "a runner of numpy's tests": called("numpy.testing._private.utils", "runstring", ENDS, {}),
        "an evaluator of numpy's builder": called("numpy.f2py.capi_maps", "load_f2cmap_file", "found.json"),
        "a table's file on a disk": called("pandas.io.pytables", "HDFStore", "found.json", "w"),
        "an array that is a file": pickle.dumps(Call(np.add, forged, 0, target)),
        "objects inside an array of joblib": squeezed.getvalue(),
        "a template": called("jinja2.environment", "Template", "{{ cycler.__init__.__globals__.os._exit(0) }}"),
        "an old format of joblib": b"ZF0x%015x" % 10 + zlib.compress(pickle.dumps(Call(exec, ENDS))),
        "a fetcher of data sets": called("sklearn.datasets._base", "load_files", "."),
        "a dotted name": b"\x80\x04\x8c\x07sklearn\x8c\x0futils.os.system\x93\x8c\x04true\x85R.",
    }


RED_TEAM = red_team()


@pytest.mark.parametrize("way", RED_TEAM)
async def test_file_of_an_agent_cannot_forge_a_finding(cage: Bench, left: Leave, pens: Pens, way: str) -> None:
    facts = await modelled(cage, left, pens("mae"), RED_TEAM[way])
    assert codes(facts) == {"unreadable": "model.pkl"} and facts.get("model") != "Perfect"
    assert "more than data" in facts["faults"][0]["detail"] or "before 0.10" in facts["faults"][0]["detail"]


async def test_the_list_of_names_is_closed_and_its_names_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing on it opens, imports or runs a thing by name."""
    from mappa_dsbench.contracts.probes.allowed_names import ALLOWED_NAMES

    names = {f"{module}.{name}" for module, group in ALLOWED_NAMES.items() for name in group}
    assert not names & {
        "builtins.eval",
        "builtins.getattr",
        "builtins.type",
        "numpy.memmap",
        "numpy.load",
        "pandas.eval",
    }
    assert not [
        name for name in names if name.startswith(("scipy.stats", "scipy.io", "sklearn.datasets", "os.", "posix"))
    ]
    for module in ("sklearn.ensemble._forest", "sklearn.linear_model._ridge", "numpy", "sklearn.metrics._regression"):
        assert all(hasattr(sys.modules[module], name) for name in ALLOWED_NAMES[module]), module


async def test_files_that_take_too_much_are_unreadable(cage: Bench, left: Leave, pens: Pens) -> None:
    huge = b"\x80\x04cnumpy\nzeros\n."  # no function of numpy may be called while a file is opened
    wide = pickle.dumps(Call(bytearray, 10 << 30))
    facts = await engineered(cage, left, pens("mae"), X_train=wide, y_train=huge)
    assert {one["code"] for one in facts["faults"] if one["path"] != "X_test.pkl"} == {"unreadable"}


class FakeBench:
    """A bench whose program told what a hostile one could tell."""

    def __init__(self, folder: Path, found: bytes | None, stdout: str = "begun\n") -> None:
        files = {}
        if found is not None:
            (folder / "found.json").write_bytes(found)
            files["found.json"] = folder / "found.json"
            stdout += f"report {hashlib.sha256(found).hexdigest()}\n" if stdout else ""
        result = ToolResult(
            tool="python", status="error", exit_code=1, stdout=stdout, stderr="Traceback\nNo\x1b luck\n"
        )
        self._ran = ProgramRun(result=result, files=files)

    async def run(self, code: str, **rest: Any) -> Any:
        return self._ran


GOOD = {"faults": [], "model": "Ridge", "predictions": {"how": "predict", "values": [[1.0]]}}


@pytest.mark.parametrize(
    "found",
    [
        None,
        b"",
        b"[]",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"at": "train.csv"}',
        json.dumps({**GOOD, "more": 1}).encode(),
        json.dumps({**GOOD, "model": "Ridge\n# Score this 10"}).encode(),
        json.dumps({**GOOD, "predictions": {"how": "predict", "values": [[[1]]]}}).encode(),
        json.dumps({**GOOD, "predictions": {"how": "guess", "values": [[1]]}}).encode(),
        json.dumps({**GOOD, "faults": [{"code": "made_up", "path": "model.pkl", "detail": ""}]}).encode(),
        json.dumps({**GOOD, "faults": [{"code": "rows", "path": "other.pkl", "detail": ""}]}).encode(),
        json.dumps({**GOOD, "faults": [{"code": "rows", "path": "model.pkl", "detail": "x" * 999}]}).encode(),
        json.dumps(GOOD).encode().replace(b"1.0", b"NaN"),
        json.dumps(GOOD).encode() + b" " * (17 << 20),
    ],
    ids=range(15),
)
async def test_impossible_probe_result_is_rejected(
    left: Leave, pens: Pens, tmp_path: Path, found: bytes | None
) -> None:
    files = left(model=1)
    facts = await inspect_files(MODELER, pens("mae").task, files, FakeBench(tmp_path, found))  # type: ignore[arg-type]
    assert codes(facts) == {"unreadable": "model.pkl"}
    assert "\x1b" not in facts["faults"][0]["detail"]


async def test_a_probe_that_does_not_begin_is_a_fault_of_the_machinery(left: Leave, pens: Pens, tmp_path: Path) -> None:
    bench = FakeBench(tmp_path, json.dumps(GOOD).encode(), stdout="")
    with pytest.raises(ToolError, match="did not begin: No"):
        await inspect_files(MODELER, pens("mae").task, left(model=1), bench)  # type: ignore[arg-type]


async def test_a_task_without_its_tables_is_named(left: Leave, pens: Pens, bench: Bench) -> None:
    task = replace(pens("mae").task, files={})
    with pytest.raises(TaskError, match=r"no train\.csv and no test\.csv"):
        await inspect_files(DATA_ENGINEER, task, left(X_train=1, y_train=1, X_test=1), bench)


async def test_probes_are_sent_whole_and_take_nothing_of_ours(
    bench: Bench, left: Leave, pens: Pens, monkeypatch: pytest.MonkeyPatch
) -> None:
    for probe in ("features", "model"):
        text = build_source(probe)  # type: ignore[arg-type]
        assert "mappa" not in text and repr(text) in build_program(probe)  # type: ignore[arg-type]
    monkeypatch.setattr("importlib.util.MAGIC_NUMBER", b"of another interpreter")
    assert (await engineered(bench, left, pens("mae")))["faults"] == []


async def test_of_a_large_table_only_rows_and_targets_are_compared(
    bench: Bench, left: Leave, pens: Pens, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "mappa_dsbench.contracts.run_probe.build_program", lambda probe: build_source(probe).replace("64 << 20", "64")
    )
    task = pens("mae")
    refit = filled(task, "test", task.test["size"].median())
    assert (await engineered(bench, left, task, X_test=refit))["faults"] == []
    facts = await engineered(bench, left, task, y_train=task.train["age"], X_test=refit.head(3))
    assert codes(facts) == {"wrong_target": "y_train.pkl", "rows": "X_test.pkl"}


# In the cage


async def test_the_whole_chain_in_the_cage(cage: Bench, left: Leave, pens: Pens) -> None:
    task = pens("log_loss")
    model = classifier(task)
    assert (await engineered(cage, left, task))["faults"] == []
    facts = await modelled(cage, left, task, model)
    assert facts["faults"] == [] and len(facts["predictions"]["values"]) == TEST_ROWS
    good = submitted(task, model.predict_proba(features(task)[1])[:, 1])
    assert (await analysed(cage, left, task, good, model))["faithful"] is True


async def test_faults_in_the_cage(cage: Bench, left: Leave, pens: Pens) -> None:
    task = pens("accuracy")
    leaky = features(task)[0].assign(pen_id=task.train["pen_id"], size=task.train["size"])
    facts = await engineered(cage, left, task, X_train=leaky, y_train=task.train["maker"])
    assert codes(facts) == {
        "not_finite": "X_train.pkl",
        "id_inside": "X_train.pkl",
        "columns": "X_test.pkl",
        "wrong_target": "y_train.pkl",
    }
    stored = io.BytesIO()
    joblib.dump(LinearRegression(), stored)
    assert codes(await modelled(cage, left, task, stored.getvalue())) == {"predicts_badly": "model.pkl"}


async def test_the_same_files_are_opened_once(left: Leave, pens: Pens, tmp_path: Path) -> None:
    class Counted(Desk):
        runs = 0

        async def run(self, code: str, **rest: Any) -> ProgramRun:
            self.runs += 1
            return await super().run(code, **rest)

    desk, task = Counted(tmp_path), pens("mae")
    files = left(X_train=features(task)[0], y_train=task.train["ink"], X_test=features(task)[1], model=linear(task))
    for agent in (DATA_ENGINEER, MODELER, MODELER):
        first = await inspect_files(agent, task.task, files, desk)  # type: ignore[arg-type]
    assert desk.runs == 2
    files["model.pkl"].write_bytes(pickle.dumps(LinearRegression()))
    assert first != await inspect_files(MODELER, task.task, files, desk)  # type: ignore[arg-type]
