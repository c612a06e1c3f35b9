"""Errors of the engine `cluster`.

EngineError
├── SyncError             new weights did not reach a sampler, or not as the learner sent them
└── EngineLost            an engine process died or hangs; the run itself is sound
    ├── ActorLost         it died
    ├── ActorFailed       its own code raised what no caller expects
    ├── ActorTimeout      it did not answer in time
    └── NodeLost          its node is gone
"""

from __future__ import annotations

from mappa_core.engine import EngineError, EngineLost


class SyncError(EngineError):
    """New weights did not reach a sampler, or not as the learner sent them. The message names policy and engine."""


class ActorLost(EngineLost):
    """An actor died, or was killed. The message says how it ended."""


class ActorFailed(EngineLost):
    """The code in an actor raised what no caller expects, out of memory for example. What it left half done is not
    known, so its owner has to stop it. The message has the traceback."""

    @classmethod
    def of(cls, actor: object, error: Exception, *, name: str) -> ActorFailed:
        """Build the error of `actor`, whose call raised `error`."""
        notes = getattr(error, "__notes__", ())
        return cls("\n".join([f"{actor} failed: {type(error).__name__}: {error}", *notes]), actor=name)


class ActorTimeout(EngineLost):
    """An actor did not answer in time or sends no heartbeat. It may still be running; its owner has to stop it."""


class NodeLost(EngineLost):
    """A node of the cluster is gone, and what ran there. Placement on the other nodes may be possible."""
