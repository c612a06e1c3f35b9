"""Who runs where: policies and resources to learner groups and sampler pools, with the memory that each takes.

Arithmetic alone: nothing is started, and nothing heavy imported. What GPUs are said to take was not measured on any.
"""

from mappa_core.engine.cluster.placement.layout import LearnerGroup as LearnerGroup
from mappa_core.engine.cluster.placement.layout import SamplerPool as SamplerPool
from mappa_core.engine.cluster.placement.placed import Placement as Placement
from mappa_core.engine.cluster.placement.placing import place as place
from mappa_core.engine.cluster.placement.resources import Node as Node
from mappa_core.engine.cluster.placement.resources import Resources as Resources
from mappa_core.engine.cluster.placement.resources import Slot as Slot
from mappa_core.engine.cluster.placement.showing import table as table
from mappa_core.engine.shapes import ModelShape as ModelShape
from mappa_core.engine.shapes import read_shape as read_shape
