"""The verbs: what offers must be able to do. Async where they wait, plain where they compute."""

from mappa_core.protocols.acting import Bench as Bench
from mappa_core.protocols.acting import Ran as Ran
from mappa_core.protocols.acting import Sandboxed as Sandboxed
from mappa_core.protocols.acting import Split as Split
from mappa_core.protocols.acting import Stage as Stage
from mappa_core.protocols.acting import TaskSource as TaskSource
from mappa_core.protocols.acting import Tool as Tool
from mappa_core.protocols.acting import Workflow as Workflow
from mappa_core.protocols.acting import Workspace as Workspace
from mappa_core.protocols.judging import Answer as Answer
from mappa_core.protocols.judging import Cassette as Cassette
from mappa_core.protocols.judging import Coach as Coach
from mappa_core.protocols.judging import Provider as Provider
from mappa_core.protocols.judging import Reply as Reply
from mappa_core.protocols.judging import Request as Request
from mappa_core.protocols.judging import Transport as Transport
from mappa_core.protocols.learning import Engine as Engine
from mappa_core.protocols.learning import Estimator as Estimator
from mappa_core.protocols.learning import Lora as Lora
from mappa_core.protocols.learning import Loss as Loss
from mappa_core.protocols.learning import LossRows as LossRows
from mappa_core.protocols.learning import PolicySpec as PolicySpec
from mappa_core.protocols.learning import Rewards as Rewards
from mappa_core.protocols.learning import Sampler as Sampler
from mappa_core.protocols.learning import Shaper as Shaper
from mappa_core.protocols.learning import Tracker as Tracker
