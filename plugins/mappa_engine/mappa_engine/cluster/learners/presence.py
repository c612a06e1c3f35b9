"""What of a learner is on its device."""

from __future__ import annotations

from enum import IntEnum


class Presence(IntEnum):
    """What of a learner is on its device; the rest is in the memory of the host. Each level includes those below."""

    NOTHING = 0
    WEIGHTS = 1
    """The weights that it computes with: enough to score, to answer and to send."""
    ALL = 2
    """Gradients, master weights and the optimiser's state, too: what a step needs."""
