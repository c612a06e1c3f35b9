"""Learners: groups of ranks that keep and train policies."""

from mappa_core.engine.cluster.learners.group import LearnerGroup
from mappa_core.engine.cluster.learners.rank import Task
from mappa_core.engine.cluster.learners.settings import dtype_of

__all__ = ["LearnerGroup", "Task", "dtype_of"]
