"""Reference scores of fixed models, to detect incredible scores.

Two models represent honest work: a linear one (ridge or logistic regression) and a random forest, both on standardised
numbers and one-hot categories, with nothing tuned. The reference of a task is the better of the two. A score far above
it was hardly learned from the training table: most likely the answers were found elsewhere.
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
from mappa_dsbench.embedded.make_task import EmbeddedFiles
from mappa_dsbench.grading.grade import Anchors, compute_anchors, grade_submission
from mappa_dsbench.grading.metrics import METRICS, Values
from mappa_dsbench.grading.truth import read_truth
from mappa_dsbench.problem import Problem

TREES = 60


@dataclass(frozen=True, slots=True)
class Reference:
    """The better of the fixed models on a task, its score, and the task's anchors."""

    model: str
    score: float
    anchors: Anchors


def fit_reference(task: EmbeddedFiles) -> Reference:
    """Fit both models and grade their submissions, which takes about a second of one core.

    ToolError: the grader rejected a submission, which is a fault of this module.
    """
    truth = read_truth(task.answer, task.problem)
    anchors = compute_anchors(truth, read_table_bytes(task.train))
    scores = {}
    for model, submission in fit_submissions(task).items():
        graded = grade_submission(truth, anchors, submission)
        if graded.raw is None:
            raise ToolError(f"{task.problem.name}: the {model} reference was rejected: {graded.reason} {graded.detail}")
        scores[model] = graded.raw
    higher = METRICS[task.problem.metric].better == "higher"
    best = (max if higher else min)(scores, key=lambda model: scores[model])
    return Reference(best, scores[best], anchors)


def fit_submissions(task: EmbeddedFiles) -> dict[str, bytes]:
    """Fit each fixed model; return its submission.csv by the model's name."""
    train, test = read_table_bytes(task.train), read_table_bytes(task.test)
    problem = task.problem
    features = [column for column in test.columns if column != problem.id_column]
    known = train[list(problem.targets)].squeeze(axis="columns")
    submissions = {}
    for name, model in _build_models(train[features], problem).items():
        model.fit(train[features], known)
        predicted = _predict(model, test[features], problem).reshape(len(test), -1)
        columns = dict(zip(problem.targets, predicted.T, strict=True))
        table = pd.DataFrame({problem.id_column: test[problem.id_column], **columns})
        submissions[name] = table.to_csv(index=False, lineterminator="\n").encode()
    return submissions


def _build_models(features: pd.DataFrame, problem: Problem) -> dict[str, Pipeline]:
    if problem.kind == "classification":
        linear = LogisticRegression(max_iter=2000)
        forest = RandomForestClassifier(TREES, min_samples_leaf=2, random_state=0)
    else:
        linear = Ridge()
        forest = RandomForestRegressor(TREES, min_samples_leaf=2, random_state=0)
    return {
        name: make_pipeline(_preprocessing(features), model) for name, model in (("linear", linear), ("forest", forest))
    }


def _preprocessing(features: pd.DataFrame) -> Pipeline:
    numbers = [column for column in features.columns if is_numeric_dtype(features[column])]
    words = [column for column in features.columns if column not in numbers]
    return make_column_transformer(
        (make_pipeline(SimpleImputer(strategy="median"), StandardScaler()), numbers),
        (OneHotEncoder(handle_unknown="ignore", sparse_output=False), words),
    )


def _predict(model: Pipeline, features: pd.DataFrame, problem: Problem) -> Values:
    """Predict, n x m, in the form that the metric requires."""
    required = METRICS[problem.metric].prediction
    if required in ("score", "probability"):
        return np.asarray(model.predict_proba(features)[:, 1])
    predicted = np.asarray(model.predict(features))
    return predicted.clip(min=0) if required == "count" else predicted


def read_table_bytes(table: bytes) -> pd.DataFrame:
    """Read a table as an agent's program would."""
    return pd.read_csv(BytesIO(table))
