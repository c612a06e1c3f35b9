"""Faults for the credit test: real programs of the three roles, and edits that break one of them.

The programs lie in `programs/`; names of columns stand in them as "ID", "TARGET" and "TARGETS".
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

import pandas as pd

from mappa_core import Task
from mappa_dsbench.grading.metrics import METRICS
from mappa_dsbench.roles import ANALYST, DATA_ENGINEER, MODELER, ROLES
from mappa_dsbench.table import table_of_task

PROGRAMS = {path.stem: path.read_text() for path in (Path(__file__).parent / "programs").glob("*.py")}
PHRASINGS: Mapping[str, Sequence[str]] = {
    role: sorted(name for name in PROGRAMS if name.startswith(prefix))
    for role, prefix in ((DATA_ENGINEER, "engineer"), (MODELER, "modeler"), (ANALYST, "analyst"))
}
Where = Callable[[Task], bool]


@dataclass(frozen=True)
class Edit:
    """Breaks a program whose name begins with `program`, on tasks where that has a consequence: each pattern in turn
    must be found, and is replaced."""

    program: str
    changes: Sequence[tuple[str, str]]
    where: Where

    @property
    def agent(self) -> str:
        return next(role for role, names in PHRASINGS.items() if names[0].startswith(self.program.split("_")[0]))


@dataclass(frozen=True)
class Play:
    """What the three agents write in one trajectory, and who of them makes which fault."""

    kind: str
    guilty: str | None
    task: Task
    programs: Mapping[str, str]
    edit: Edit | None

    @property
    def replies(self) -> list[str]:
        return [f"```python\n{self.programs[role]}```\nDONE" for role in ROLES]


def anywhere(task: Task) -> bool:
    return True


def prediction(task: Task) -> str:
    return METRICS[table_of_task(task).problem.metric].prediction


def probabilities(task: Task) -> bool:
    return prediction(task) in ("score", "probability")


def numeric(task: Task) -> bool:
    """The predictions are numbers."""
    return prediction(task) not in ("label", "level")


def text(task: Task) -> bool:
    return table_of_task(task).categorical


def several_features(task: Task) -> bool:
    return len(table_of_task(task).features) > 1


def one_number(task: Task) -> bool:
    """There is one target, and it is a number."""
    targets = table_of_task(task).problem.targets
    return len(targets) == 1 and pd.api.types.is_numeric_dtype(tables(task)[0][targets[0]])


def train_gaps(task: Task) -> bool:
    return bool(tables(task)[0][_numbers(task)].isna().any(axis=None))


def test_gaps(task: Task) -> bool:
    return bool(tables(task)[1][_numbers(task)].isna().any(axis=None))


def other_medians(task: Task) -> bool:
    """A column with gaps in the test table has another median there than in training."""
    train, test = (table[_numbers(task)] for table in tables(task))
    return bool((test.isna().any() & (train.median() != test.median())).any())


def numbers(task: Task) -> bool:
    """A feature is a number."""
    return bool(_numbers(task))


def _numbers(task: Task) -> list[str]:
    train = tables(task)[0]
    return [name for name in table_of_task(task).features if pd.api.types.is_numeric_dtype(train[name])]


def tables(task: Task) -> tuple[pd.DataFrame, pd.DataFrame]:
    return _read(task.files["train.csv"]), _read(task.files["test.csv"])


@cache
def _read(path: str) -> pd.DataFrame:
    return pd.read_csv(path)


def _before_saving(line: str) -> tuple[str, str]:
    return r'(?m)^(?=.*"X_train\.pkl")', line + "\n"


def _edits(program: str, *changes: tuple[str, str], where: Where = anywhere) -> list[Edit]:
    """One edit for each change."""
    return [Edit(program, (change,), where) for change in changes]


_FILES = ("X_train", "y_train", "X_test")
_READ = r"(?m)^(?=y_train)"
_PREDICTED = r"(predicted = .*\n)"
_WITHOUT_ID = (r'test\.drop\(columns=\["ID"\]\)', "test")
_KEPT_ID = ((r', "ID"\]\)', "])"), _WITHOUT_ID)
_DUMMIES = ((r"X_train = pd\.get_dummies.*\n", ""), (r"X_test = pd\.get_dummies.*\n", ""))
_FILLED = r"(X_test\[name\])\.fillna\(filler\)"
KINDS: Mapping[str, Sequence[Edit]] = {
    "not_saved": [
        *_edits("engineer", *((rf'(?m)^.*"{name}\.pkl".*\n', "") for name in _FILES)),
        *_edits("engineer", *((rf'"{name}\.pkl"', f'"{name}.pickle"') for name in _FILES)),
        *_edits("engineer", *((rf'"{name}\.pkl"', f'"{name.lower()}.pk"') for name in _FILES)),
    ],
    "columns_differ": _edits(
        "engineer",
        _before_saving("X_test = X_test[X_test.columns[::-1]]"),
        _before_saving("X_test = X_test.iloc[:, 1:]"),
        _before_saving("X_train = X_train.iloc[:, :-1]"),
        _before_saving('X_test = X_test.rename(columns={X_test.columns[0]: "feature"})'),
        where=several_features,
    ),
    "target_inside": [
        *_edits("engineer_dummies", (r'\[\*"TARGETS", "ID"\]', '["ID"]')),
        *_edits(
            "engineer", _before_saving('X_train["known"] = y_train\nX_test["known"] = y_train.mean()'), where=one_number
        ),
    ],
    "id_inside": [
        Edit("engineer_dummies", _KEPT_ID, anywhere),
        Edit("engineer_transformer", _KEPT_ID, anywhere),
        *_edits("engineer_codes", (r' if column != "ID"', "")),
    ],
    "refit_on_test": [
        *_edits(
            "engineer_dummies", (r"X_test\.fillna\(medians\)", "X_test.fillna(X_test.median())"), where=other_medians
        ),
        *_edits("engineer_codes", (_FILLED, r"\1.fillna(\1.median())"), where=other_medians),
        *_edits("engineer_transformer", (r"prepare\.transform\(asked", "prepare.fit_transform(asked"), where=numbers),
    ],
    "not_numbers": [
        *_edits("engineer_dummies", (r"X_test = X_test\.fillna.*\n", ""), where=test_gaps),
        *_edits("engineer_codes", (_FILLED, r"\1"), where=test_gaps),
        *_edits("engineer_dummies", (r"X_train = X_train\.fillna.*\n", ""), where=train_gaps),
        *_edits("engineer_codes", (r"(X_train\[name\])\.fillna\(filler\)", r"\1"), where=train_gaps),
        Edit("engineer_dummies", (*_DUMMIES, (r"median\(", "median(numeric_only=True")), text),
        *_edits("engineer_transformer", (r"OneHotEncoder\(.*?\)", '"passthrough"'), where=text),
    ],
    "rows": [
        *_edits("engineer", _before_saving("X_train = X_train.iloc[:-7]"), _before_saving("X_test = X_test.iloc[5:]")),
        *_edits("engineer", _before_saving("X_test = X_test.sample(frac=1, random_state=0)")),
        *_edits("engineer", (_READ, "train = train.head(60)\n")),
        *_edits("engineer", (_READ, "test = test.dropna()\n"), where=test_gaps),
    ],
    "wrong_target": _edits(
        "engineer",
        (r'train\["TARGET"\]', "train[test.columns[-1]]"),
        (r'train\["TARGET"\]', 'train["TARGET"].sample(frac=1, random_state=0).reset_index(drop=True)'),
        (r'train\["TARGET"\]', 'train["TARGET"].shift(1).bfill()'),
    ),
    "model_not_saved": [
        *_edits("modeler_forest", (r"(?s)with Path.*", "")),
        *_edits("modeler_linear", (r"pd\.to_pickle.*\n", "")),
        *_edits("modeler_trees", (r"Path\(.*\n", "")),
        *_edits("modeler", (r'"model\.pkl"', '"model.joblib"'), (r'"model\.pkl"', '"classifier.pkl"')),
    ],
    "wrong_kind": _edits(
        "modeler",
        ("Regressor", "Classifier"),
        ("Classifier", "Regressor"),
        (r"\bRidge\b", "LogisticRegression"),
        (r"\bLogisticRegression\b", "Ridge"),
    ),
    "model_not_usable": [
        *_edits("modeler", (r"(?m)^model\.fit.*\n", ""), (r"(dumps?)\(model", r"\1(model.get_params()")),
        *_edits("modeler", (r"fit\(X_train,", "fit(X_train.iloc[:, 1:],"), where=several_features),
    ],
    "no_probabilities": _edits(
        "modeler_linear",
        ("LogisticRegression", "RidgeClassifier"),
        ("LogisticRegression", "Perceptron"),
        where=probabilities,
    ),
    "header": [
        *_edits("analyst_frame", (r'columns="TARGETS"', 'columns=[f"predicted_{name}" for name in "TARGETS"]')),
        *_edits("analyst_frame", (r'insert\(0, "ID"', 'insert(0, "row"')),
        *_edits("analyst", (r"submission\.to_csv", "submission.rename(columns=str.upper).to_csv")),
        *_edits("analyst", (r'"submission\.csv"', '"predictions.csv"')),
        *_edits("analyst", (r", index=False", "")),
    ],
    "ids": _edits("analyst", (r'test\["ID"\]', "range(len(test))"), (r'test\["ID"\]', 'test["ID"].iloc[0]')),
    "other_predictions": [
        *_edits("analyst", (r'"X_test\.pkl"', '"X_train.pkl"'), (_PREDICTED, r"\1predicted = predicted[::-1]\n")),
        *_edits("analyst", (_PREDICTED, r"\1predicted = predicted * 0 + 0.25\n"), where=numeric),
        *_edits("analyst", (r"submission\.to_csv", "submission.head(20).to_csv")),
    ],
    "hard_labels": _edits("analyst", (r"predict_proba\(X_test\)\[:, 1\]", "predict(X_test)"), where=probabilities),
}
"""Every kind of fault, as edits that are drawn from."""


def drawn(kind: str | None, tasks: Sequence[Task], draw: Random) -> Play:
    """One play of a kind of fault, None for a faultless one: any task, any phrasing that the fault can be made in."""
    edit = None if kind is None else draw.choice(KINDS[kind])
    while True:
        kinds = draw.choice(sorted({task.stratum for task in tasks}))
        task = draw.choice([task for task in tasks if task.stratum == kinds])
        names = {role: draw.choice(phrasings) for role, phrasings in PHRASINGS.items()}
        programs = {role: _adapted(PROGRAMS[name], task) for role, name in names.items()}
        if edit is None:
            break
        if not (edit.where(task) and names[edit.agent].startswith(edit.program)):
            continue
        broken = _edited(programs[edit.agent], edit)
        if broken is not None:
            programs[edit.agent] = broken
            break
    return Play(
        kind=kind or "faultless",
        guilty=edit.agent if edit is not None else None,
        task=task,
        programs={role: _named(program, task) for role, program in programs.items()},
        edit=edit,
    )


def written(name: str, task: Task) -> str:
    """One of the programs, for a task."""
    return _named(_adapted(PROGRAMS[name], task), task)


def _adapted(program: str, task: Task) -> str:
    """The program as the metric asks for it."""
    if task.stratum == "classification":
        program = program.replace("Regressor", "Classifier").replace("Ridge", "LogisticRegression")
    if probabilities(task):
        return program.replace("model.predict(X_test)", "model.predict_proba(X_test)[:, 1]")
    return program.replace("predict(X_test)", "predict(X_test).clip(min=0)") if prediction(task) == "count" else program


def _edited(program: str, edit: Edit) -> str | None:
    """None where the program has no place to break."""
    for find, put in edit.changes:
        program, count = re.subn(find, put, program)
        if not count:
            return None
    return program


def _named(program: str, task: Task) -> str:
    problem = table_of_task(task).problem
    targets = list(problem.targets)
    names = {"TARGETS": targets, "TARGET": targets[0] if len(targets) == 1 else targets, "ID": problem.id_column}
    return re.sub(r'"(TARGETS|TARGET|ID)"', lambda found: json.dumps(names[found[1]]), program)
