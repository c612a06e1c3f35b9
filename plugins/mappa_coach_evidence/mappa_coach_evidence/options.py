"""Options of the offer `evidence`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class EvidenceOptions:
    """Options of the coach `evidence`."""
