"""The contract that every engine keeps, kept by this one."""

from __future__ import annotations

import pytest

from mappa.testing import EngineContract
from mappa_engine.cluster.engine import ClusterEngine
from mappa_engine.losses import PPOLoss
from mappa_engine.options import ClusterOptions, PPOOptions


@pytest.mark.soak
@pytest.mark.timeout(900)
class TestCluster(EngineContract):
    # vLLM on CPUs takes no heads as small as those of core's model.
    model = "package:mappa_mathchat/models/tiny"

    def engine(self):
        return ClusterEngine(ClusterOptions(deterministic=True, kv_cache_mb=64, packed_tokens=1024, learner_ranks=2))

    def loss(self):
        return PPOLoss(PPOOptions())
