"""Losses per token of a policy and of its value head. The engine owns the mean (`engine.learning.means`)."""

from mappa_core.engine.losses.cispo import CISPOLoss as CISPOLoss
from mappa_core.engine.losses.gspo import GSPOLoss as GSPOLoss
from mappa_core.engine.losses.ppo import PPOLoss as PPOLoss
