"""Errors of the engine `cluster`.

EngineError
├── SyncError             new weights did not reach a sampler, or not as the learner sent them
└── EngineLost            an engine process died or hangs; the run itself is sound
    ├── ActorLost         it died
    ├── ActorTimeout      it did not answer in time
    └── NodeLost          its node is gone
"""

from __future__ import annotations

from mappa_core.engine import EngineError, EngineLost


class SyncError(EngineError):
    """New weights did not reach a sampler, or not as the learner sent them. The message names policy and engine."""


class ActorLost(EngineLost):
    """An actor died, or was killed. The message says how it ended."""


class ActorTimeout(EngineLost):
    """An actor did not answer in time or sends no heartbeat. It may still be running; its owner has to stop it."""


class NodeLost(EngineLost):
    """A node of the cluster is gone, and what ran there. Placement on the other nodes may be possible."""
