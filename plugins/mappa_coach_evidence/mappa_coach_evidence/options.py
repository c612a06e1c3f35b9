"""Options of the offer `evidence`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class EvidenceOptions:
    """Options of the coach `evidence`."""

    presume_failure: bool = True
    """Judge a trajectory whose outcome is not shown as one that failed. Rules that only say where a failure came from
    are silent where the outcome is a success, and where it is unknown and this is false."""
