"""Per-token losses of a policy and its value head. The engine reduces them (`engine.learning.means`)."""

from mappa_engine.losses.cispo import CISPOLoss as CISPOLoss
from mappa_engine.losses.gspo import GSPOLoss as GSPOLoss
from mappa_engine.losses.ppo import PPOLoss as PPOLoss
from mappa_engine.losses.sapo import SAPOLoss as SAPOLoss
from mappa_engine.losses.vespo import VESPOLoss as VESPOLoss
