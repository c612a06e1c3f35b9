"""Learner groups: ranks that hold and train policies."""

from mappa_core.engine.cluster.learners.group import LearnerGroup
from mappa_core.engine.cluster.learners.rank import LearnerConfig
from mappa_core.engine.cluster.learners.settings import resolve_dtype

__all__ = ["LearnerConfig", "LearnerGroup", "resolve_dtype"]
