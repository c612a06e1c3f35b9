"""Placement: maps policies to learner groups and sampler pools on a cluster's devices, with their memory.

Pure arithmetic: it starts nothing and imports no heavy library. docs/engines.md says which figures were measured.
"""

from mappa_engine.cluster.placement.find import find_placement as find_placement
from mappa_engine.cluster.placement.format import format_placement as format_placement
from mappa_engine.cluster.placement.layouts import GroupPlacement as GroupPlacement
from mappa_engine.cluster.placement.layouts import PoolPlacement as PoolPlacement
from mappa_engine.cluster.placement.placement import Placement as Placement
from mappa_engine.cluster.placement.resources import DeviceSlot as DeviceSlot
from mappa_engine.cluster.placement.resources import Resources as Resources
from mappa_engine.model_shape import ModelShape as ModelShape
from mappa_engine.model_shape import read_shape as read_shape
