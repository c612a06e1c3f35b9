"""The fleet: processes of one run on one machine or many, started, asked, watched and ended by Ray."""

from mappa_core.engine.cluster.fleet.actor import Actor, Call
from mappa_core.engine.cluster.fleet.fleet import Fleet, Slot

__all__ = ["Actor", "Call", "Fleet", "Slot"]
