"""Ray actors: starts, calls, monitors and ends the processes of one run, on one machine or many."""

from mappa_core.engine.cluster.fleet.actor import Actor, ActorCall
from mappa_core.engine.cluster.fleet.fleet import RayActors, ReservedBundle

__all__ = ["Actor", "ActorCall", "RayActors", "ReservedBundle"]
