"""The programs of demonstrations, as sets of choices, and the lines that they consist of.

A program follows from its choices, good or bad; demonstrations.py makes the choices. `$id` and `$target` are
placeholders for names; several targets are joined there. Each line, or each part of it around placeholders, is one
token.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import Template
from typing import Literal

from mappa_dsbench.problem import Problem
from mappa_dsbench.roles import X_TEST, X_TRAIN, Y_TRAIN

NAME_SEPARATOR = '", "'
"""The separator of two names in a placeholder."""
OPENING, CLOSING, DONE = "```python\n", "```\n", "DONE"

PANDAS, PICKLE = "import pandas as pd\n", "import pickle\n"
READ_TABLES = ('train = pd.read_csv("train.csv")\n', 'test = pd.read_csv("test.csv")\n')
READ_INDEXED = (
    'train = pd.read_csv("train.csv", index_col="$id")\n',
    'test = pd.read_csv("test.csv", index_col="$id")\n',
)
DROP_GAPS = "train = train.dropna()\n"
TARGET, TARGETS = 'y = train["$target"]\n', 'y = train[["$target"]]\n'
POP = 'y = train.pop("$target")\n'
# The words before a placeholder determine which name comes first: names are then copied far more reliably.
DROP_BOTH = 'X = train.drop(columns=["$id", "$target"])\n'
DROP_BOTH_OF_SEVERAL = 'X = train.drop(columns=["$id", *y])\n'
DROP_TARGET, DROP_TARGETS = 'X = train.drop(columns="$target")\n', "X = train.drop(columns=y.columns)\n"
DROP_ID, DROP_ID_AFTER_POP = 'X = train.drop(columns=["$id"])\n', 'X = train.drop("$id", axis=1)\n'
DROP_NOTHING = "X = train\n"
TEST_DROP, TEST_ALIKE, TEST_WHOLE = 'T = test.drop(columns="$id")\n', "T = test[X.columns]\n", "T = test\n"
ENCODE: Mapping[str, str] = {
    "reindexed": ("X = pd.get_dummies(X)\nT = pd.get_dummies(T).reindex(columns=X.columns, fill_value=0)\n"),
    "together": "both = pd.get_dummies(pd.concat([X, T]))\nX, T = both[: len(X)], both[len(X) :]\n",
    "none": "",
}
FILL: Mapping[str, str] = {
    "median": "middle = X.median()\nX, T = X.fillna(middle), T.fillna(middle)\n",
    "mean": "middle = X.mean()\nX, T = X.fillna(middle), T.fillna(middle)\n",
    "zero": "X, T = X.fillna(0), T.fillna(0)\n",
    "own median": "X, T = X.fillna(X.median()), T.fillna(T.median())\n",
    "own mean": "X, T = X.fillna(X.mean()), T.fillna(T.mean())\n",
    "none": "",
}
SCALE = "mean, spread = X.mean(), X.std() + 1e-9\nX, T = (X - mean) / spread, (T - mean) / spread\n"
SAVE: Mapping[str, str] = {
    X_TRAIN: 'X.to_pickle("X_train.pkl")\n',
    Y_TRAIN: 'y.to_pickle("y_train.pkl")\n',
    X_TEST: 'T.to_pickle("X_test.pkl")\n',
}

LOAD_X = {X_TRAIN: 'X = pd.read_pickle("X_train.pkl")\n', X_TEST: 'X = pd.read_pickle("X_test.pkl")\n'}
LOAD_Y = 'y = pd.read_pickle("y_train.pkl")\n'
FIT = "model.fit(X, y)\n"
SAVE_MODEL: Mapping[str, str] = {
    "pickle": 'with open("model.pkl", "wb") as file:\n    pickle.dump(model, file)\n',
    "pandas": 'pd.to_pickle(model, "model.pkl")\n',
    "none": "",
}

LOAD_MODEL: Mapping[str, str] = {
    "pickle": 'with open("model.pkl", "rb") as file:\n    model = pickle.load(file)\n',
    "pandas": 'model = pd.read_pickle("model.pkl")\n',
}
PREDICT: Mapping[str, str] = {
    "predict": "p = model.predict(X)\n",
    "proba": "p = model.predict_proba(X)[:, 1]\n",
    "proba of 0": "p = model.predict_proba(X)[:, 0]\n",
}
TABLE: Mapping[str, str] = {
    "dictionary": 'table = pd.DataFrame({"$id": test["$id"], "$target": p})\n',
    "range": 'table = pd.DataFrame({"$id": range(len(p)), "$target": p})\n',
    "ids": 'table = test[["$id"]]\n',
    "sample": 'table = pd.read_csv("sample_submission.csv")\n',
}
COLUMN, COLUMNS = 'table["$target"] = p\n', 'table[["$target"]] = p\n'
SAVE_SUBMISSION: Mapping[bool, str] = {
    True: 'table.to_csv("submission.csv")\n',
    False: 'table.to_csv("submission.csv", index=False)\n',
}
PREDICTION = "prediction"
"""The name of the prediction column in programs that ignore the required header."""


@dataclass(frozen=True, slots=True)
class ModelLine:
    """A line that makes a model, and its import lines."""

    line: str
    imports: tuple[str, ...]


def _model_line(expression: str, imports: str) -> ModelLine:
    """Build a model line; `imports` names what to import from scikit-learn: `ensemble.RandomForestClassifier`."""
    parts = [one.rsplit(".", 1) for one in imports.split()]
    return ModelLine(
        f"model = {expression}\n", tuple(f"from sklearn.{module} import {name}\n" for module, name in parts)
    )


_SCALED = "pipeline.make_pipeline preprocessing.StandardScaler "
_ROBUST = "pipeline.make_pipeline preprocessing.MinMaxScaler "
# Ten trees cost a tenth of what a hundred do, and are hardly worse on tables of this size.
CLASSIFIERS = (
    _model_line("RandomForestClassifier(10, random_state=0)", "ensemble.RandomForestClassifier"),
    _model_line("RandomForestClassifier(12, min_samples_leaf=3, random_state=0)", "ensemble.RandomForestClassifier"),
    _model_line("ExtraTreesClassifier(12, min_samples_leaf=2, random_state=0)", "ensemble.ExtraTreesClassifier"),
    _model_line(
        "make_pipeline(StandardScaler(), LogisticRegression(max_iter=500))", _SCALED + "linear_model.LogisticRegression"
    ),
    _model_line(
        "make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=500))",
        _SCALED + "linear_model.LogisticRegression",
    ),
    _model_line(
        "make_pipeline(MinMaxScaler(), LogisticRegression(C=10, max_iter=500))",
        _ROBUST + "linear_model.LogisticRegression",
    ),
    _model_line(
        "make_pipeline(StandardScaler(), KNeighborsClassifier(15))", _SCALED + "neighbors.KNeighborsClassifier"
    ),
)
REGRESSORS = (
    _model_line("RandomForestRegressor(10, random_state=0)", "ensemble.RandomForestRegressor"),
    _model_line("RandomForestRegressor(12, min_samples_leaf=3, random_state=0)", "ensemble.RandomForestRegressor"),
    _model_line("ExtraTreesRegressor(12, min_samples_leaf=2, random_state=0)", "ensemble.ExtraTreesRegressor"),
    _model_line("make_pipeline(StandardScaler(), Ridge())", _SCALED + "linear_model.Ridge"),
    _model_line("make_pipeline(StandardScaler(), Ridge(10))", _SCALED + "linear_model.Ridge"),
    _model_line("make_pipeline(MinMaxScaler(), LinearRegression())", _ROBUST + "linear_model.LinearRegression"),
    _model_line("make_pipeline(StandardScaler(), KNeighborsRegressor(10))", _SCALED + "neighbors.KNeighborsRegressor"),
)
LINEAR_REGRESSORS = tuple(model for model in REGRESSORS if "Ridge" in model.line or "LinearRegression" in model.line)
"""Those whose predictions may be negative where no target is."""
WEAK_CLASSIFIERS = (
    _model_line("DummyClassifier()", "dummy.DummyClassifier"),
    _model_line("DecisionTreeClassifier(max_depth=1)", "tree.DecisionTreeClassifier"),
)
WEAK_REGRESSORS = (
    _model_line("DummyRegressor()", "dummy.DummyRegressor"),
    _model_line("DecisionTreeRegressor(max_depth=1)", "tree.DecisionTreeRegressor"),
)
MODELS = (*CLASSIFIERS, *REGRESSORS, *WEAK_CLASSIFIERS, *WEAK_REGRESSORS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Engineering:
    """The Data Engineer's choices. `indexed`: the ids are read as an index. `popped`: the target is removed when it is
    read. `test` is the way to select the test features; `saved` are the files that are written, in this order."""

    fenced: bool = True
    indexed: bool = False
    gaps_dropped: bool = False
    popped: bool = False
    id_kept: bool = False
    target_kept: bool = False
    test: Literal["drop", "alike", "whole"] = "drop"
    encoding: str = "reindexed"
    fill: str = "median"
    scaled: bool = False
    saved: tuple[str, ...] = (X_TRAIN, Y_TRAIN, X_TEST)

    def text(self, problem: Problem) -> str:
        """The action as it is said."""
        several = len(problem.targets) > 1
        lines = [
            PANDAS,
            "\n",
            *(READ_INDEXED if self.indexed else READ_TABLES),
            DROP_GAPS if self.gaps_dropped else "",
            POP if self.popped else TARGETS if several else TARGET,
            self._dropping(several),
            {"drop": TEST_DROP, "alike": TEST_ALIKE, "whole": TEST_WHOLE}[self.test],
            ENCODE[self.encoding],
            FILL[self.fill],
            SCALE if self.scaled else "",
            *(SAVE[path] for path in self.saved),
        ]
        return _render(lines, problem, self.fenced)

    def _dropping(self, several: bool) -> str:
        if self.target_kept:
            return DROP_ID
        if self.indexed or self.id_kept:
            return DROP_NOTHING if self.popped else DROP_TARGETS if several else DROP_TARGET
        return DROP_ID_AFTER_POP if self.popped else DROP_BOTH_OF_SEVERAL if several else DROP_BOTH


@dataclass(frozen=True, slots=True, kw_only=True)
class Modelling:
    """The Modeler's choices. `rows` is the file of features that the model is fitted to."""

    model: ModelLine
    fenced: bool = True
    rows: str = X_TRAIN
    kept: str = "pickle"

    def text(self, problem: Problem) -> str:
        """The action as it is said."""
        lines = [
            PICKLE if self.kept == "pickle" else "",
            PANDAS,
            *self.model.imports,
            "\n",
            LOAD_X[self.rows],
            LOAD_Y,
            self.model.line,
            FIT,
            SAVE_MODEL[self.kept],
        ]
        return _render(lines, problem, self.fenced)


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """The Analyst's choices. `table` is the way to build the submission, `header` the name of the prediction column:
    None is the target's name."""

    predicted: str
    fenced: bool = True
    loaded: str = "pickle"
    rows: str = X_TEST
    table: str = "dictionary"
    header: str | None = None
    with_index: bool = False

    def text(self, problem: Problem) -> str:
        """The action as it is said."""
        one = len(problem.targets) == 1 or self.header is not None
        built_whole = self.table in ("dictionary", "range")
        lines = [
            PICKLE if self.loaded == "pickle" else "",
            PANDAS,
            "\n",
            LOAD_MODEL[self.loaded],
            LOAD_X[self.rows],
            PREDICT[self.predicted],
            READ_TABLES[1] if self.table in ("dictionary", "ids") else "",
            TABLE[self.table],
            "" if built_whole else COLUMN if one else COLUMNS,
            SAVE_SUBMISSION[self.with_index],
        ]
        return _render(lines, problem, self.fenced, self.header)


Program = Engineering | Modelling | Analysis


def _render(lines: Sequence[str], problem: Problem, fenced: bool, header: str | None = None) -> str:
    target = NAME_SEPARATOR.join(problem.targets) if header is None else header
    code = Template("".join(lines)).substitute(id=problem.id_column, target=target)
    return f"{OPENING}{code}{CLOSING}{DONE}" if fenced else f"{code}{DONE}"


def line_tokens() -> list[str]:
    """Return every line, or its parts around placeholders; each once, in a fixed order."""
    whole = (
        PANDAS, PICKLE, *READ_TABLES, *READ_INDEXED, DROP_GAPS, TARGET, TARGETS, POP, DROP_BOTH, DROP_BOTH_OF_SEVERAL,
        DROP_TARGET, DROP_TARGETS, DROP_ID, DROP_ID_AFTER_POP, DROP_NOTHING,
        TEST_DROP, TEST_ALIKE, TEST_WHOLE, *ENCODE.values(), *FILL.values(), SCALE, *SAVE.values(),
        *LOAD_X.values(), LOAD_Y, FIT, *SAVE_MODEL.values(), *LOAD_MODEL.values(), *PREDICT.values(), *TABLE.values(),
        COLUMN, COLUMNS, *SAVE_SUBMISSION.values(),
        *(line for model in MODELS for line in (*model.imports, model.line)),
    )  # fmt: skip
    lines = [line for text in whole for line in text.splitlines(keepends=True)]
    split = [part for line in lines for part in re.split(r"\$\w+", line)]
    return list(
        dict.fromkeys(part for part in (OPENING, *split, NAME_SEPARATOR, PREDICTION, CLOSING + DONE, DONE) if part)
    )
