"""The engine keeps the contract of engines."""

from __future__ import annotations

from acme_numpy.engine import ReinforceLoss, TableEngine

from mappa.testing import EngineContract
from mappa_core.engine import TrainSection


class TestTables(EngineContract):
    model = "table"
    train = TrainSection(iterations=4, learning_rate=1.0)

    def engine(self):
        return TableEngine()

    def loss(self):
        return ReinforceLoss()
