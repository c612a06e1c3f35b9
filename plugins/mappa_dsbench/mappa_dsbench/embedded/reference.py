"""Submissions of fixed models, from which an incredible score is told.

Two models stand for what honest work reaches: a linear one (ridge or logistic regression) and a random forest, both on
standardised numbers and one-hot categories, with nothing tuned. The reference of a task is the better of the two. A
score far above it has hardly been learned from the training table: most likely the answers were found elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO

import numpy as np
import pandas as pd
from pandas.api.types import is_numeric_dtype
from sklearn.compose import make_column_transformer
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from mappa_core import ToolError
from mappa_dsbench.embedded.cutting import Cut
from mappa_dsbench.grading.grade import Anchors, anchors_of, grade
from mappa_dsbench.grading.metrics import METRICS, Values
from mappa_dsbench.grading.truth import read_truth
from mappa_dsbench.problem import Problem

TREES = 60


@dataclass(frozen=True, slots=True)
class Reference:
    """What the better of the fixed models scored on a task, and between which anchors."""

    model: str
    score: float
    anchors: Anchors


def reference(task: Cut) -> Reference:
    """Fit both models and grade what they submit. It takes about a second of one core.

    ToolError: the grader rejected a submission, which is a fault of this module.
    """
    truth = read_truth(task.answer, task.problem)
    anchors = anchors_of(truth, read(task.train))
    scores = {}
    for model, submission in submissions(task).items():
        graded = grade(truth, anchors, submission)
        if graded.raw is None:
            raise ToolError(f"{task.problem.name}: the {model} reference was rejected: {graded.reason} {graded.detail}")
        scores[model] = graded.raw
    higher = METRICS[task.problem.metric].better == "higher"
    best = (max if higher else min)(scores, key=lambda model: scores[model])
    return Reference(best, scores[best], anchors)


def submissions(task: Cut) -> dict[str, bytes]:
    """The submission.csv of each fixed model by the model's name."""
    train, test = read(task.train), read(task.test)
    problem = task.problem
    features = [column for column in test.columns if column != problem.id_column]
    known = train[list(problem.targets)].squeeze(axis="columns")
    found = {}
    for name, model in _models(train[features], problem).items():
        model.fit(train[features], known)
        predicted = _predicted(model, test[features], problem).reshape(len(test), -1)
        columns = dict(zip(problem.targets, predicted.T, strict=True))
        table = pd.DataFrame({problem.id_column: test[problem.id_column], **columns})
        found[name] = table.to_csv(index=False, lineterminator="\n").encode()
    return found


def _models(features: pd.DataFrame, problem: Problem) -> dict[str, Pipeline]:
    if problem.kind == "classification":
        linear = LogisticRegression(max_iter=2000)
        forest = RandomForestClassifier(TREES, min_samples_leaf=2, random_state=0)
    else:
        linear = Ridge()
        forest = RandomForestRegressor(TREES, min_samples_leaf=2, random_state=0)
    return {name: make_pipeline(_prepared(features), model) for name, model in (("linear", linear), ("forest", forest))}


def _prepared(features: pd.DataFrame) -> Pipeline:
    numbers = [column for column in features.columns if is_numeric_dtype(features[column])]
    words = [column for column in features.columns if column not in numbers]
    return make_column_transformer(
        (make_pipeline(SimpleImputer(strategy="median"), StandardScaler()), numbers),
        (OneHotEncoder(handle_unknown="ignore", sparse_output=False), words),
    )


def _predicted(model: Pipeline, features: pd.DataFrame, problem: Problem) -> Values:
    """n x m: what the metric asks for."""
    wanted = METRICS[problem.metric].prediction
    if wanted in ("score", "probability"):
        return np.asarray(model.predict_proba(features)[:, 1])
    predicted = np.asarray(model.predict(features))
    return predicted.clip(min=0) if wanted == "count" else predicted


def read(table: bytes) -> pd.DataFrame:
    """A table as a program would read it."""
    return pd.read_csv(BytesIO(table))
