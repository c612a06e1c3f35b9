"""The engine `local` and the losses keep the contracts of engines and losses."""

from __future__ import annotations

from mappa.testing import EngineContract
from mappa_engine.local import LocalEngine
from mappa_engine.losses import CISPOLoss, GSPOLoss, PPOLoss, SAPOLoss, VESPOLoss
from mappa_engine.options import CISPOOptions, GSPOOptions, LocalOptions, PPOOptions, SAPOOptions, VESPOOptions
from mappa_engine.testing import LossContract


class TestLocal(EngineContract):
    model = "package:mappa_engine/models/tiny"

    def engine(self):
        return LocalEngine(LocalOptions(device="cpu", deterministic=True))

    def loss(self):
        return PPOLoss(PPOOptions())


class TestPPO(LossContract):
    def loss(self):
        return PPOLoss(PPOOptions())


class TestPPOWithADivergence(LossContract):
    on_policy = False

    def loss(self):
        return PPOLoss(PPOOptions(kl="k3", kl_coef=0.1))


class TestGSPO(LossContract):
    def loss(self):
        return GSPOLoss(GSPOOptions())


class TestCISPO(LossContract):
    def loss(self):
        return CISPOLoss(CISPOOptions())


class TestSAPO(LossContract):
    def loss(self):
        return SAPOLoss(SAPOOptions())


class TestVESPO(LossContract):
    def loss(self):
        return VESPOLoss(VESPOOptions())
