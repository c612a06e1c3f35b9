"""Learner groups: ranks that hold and train policies."""

from mappa_engine.cluster.learners.deepspeed_config import resolve_dtype
from mappa_engine.cluster.learners.group import LearnerGroup
from mappa_engine.cluster.learners.rank import LearnerConfig

__all__ = ["LearnerConfig", "LearnerGroup", "resolve_dtype"]
