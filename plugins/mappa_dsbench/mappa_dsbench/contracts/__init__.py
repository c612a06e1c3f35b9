"""The contracts of the team, checked in what its agents leave. What they leave is opened in the cage alone."""

from mappa_dsbench.contracts.faults import FAULTS
from mappa_dsbench.contracts.inspecting import Facts, inspect, look_into

__all__ = ["FAULTS", "Facts", "inspect", "look_into"]
