"""Ray actors: starts, calls, monitors and ends the processes of one run, on one machine or many."""

from mappa_engine.cluster.actors.actor import Actor, ActorCall
from mappa_engine.cluster.actors.ray_actors import RayActors, ReservedBundle

__all__ = ["Actor", "ActorCall", "RayActors", "ReservedBundle"]
