"""Crash tests of coaches: known faults are planted in plays that succeeded, and the coach is asked who is to blame.

A package offers a `Fault` of its own by an entry point of the group `mappa.faults`.
"""

from mappa.look.crash_test.faults import Fault as Fault
from mappa.look.crash_test.faults import PlantSite as PlantSite
