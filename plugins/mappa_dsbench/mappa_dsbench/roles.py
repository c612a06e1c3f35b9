"""The team: the files that each role needs and produces, and its rubric."""

from __future__ import annotations

from collections.abc import Mapping

from mappa_core import Role
from mappa_core.workflow import read_rubric

DATA_ENGINEER = "data_engineer"
MODELER = "modeler"
ANALYST = "analyst"

TRAIN, TEST, SAMPLE = "train.csv", "test.csv", "sample_submission.csv"
X_TRAIN, Y_TRAIN, X_TEST = "X_train.pkl", "y_train.pkl", "X_test.pkl"
MODEL = "model.pkl"
SUBMISSION = "submission.csv"

TASK_FILES = (TRAIN, TEST, SAMPLE)
"""The files of every task."""

ROLES: Mapping[str, Role] = {
    DATA_ENGINEER: Role(
        brief="Turns the tables into features that a model can be fitted to, the same way for training and test rows.",
        needs=(TRAIN, TEST),
        produces=(X_TRAIN, Y_TRAIN, X_TEST),
        rubric=read_rubric("mappa_dsbench", DATA_ENGINEER),
    ),
    MODELER: Role(
        brief="Fits a model that suits the target and the metric, on the training features alone, and saves it.",
        needs=(X_TRAIN, Y_TRAIN, X_TEST),
        produces=(MODEL,),
        rubric=read_rubric("mappa_dsbench", MODELER),
    ),
    ANALYST: Role(
        brief="Lets the model predict the test rows and hands in the predictions in the form that the task asks for.",
        needs=(MODEL, X_TEST, TEST),
        produces=(SUBMISSION,),
        rubric=read_rubric("mappa_dsbench", ANALYST),
    ),
}
"""Roles by name, in the order in which they act."""
