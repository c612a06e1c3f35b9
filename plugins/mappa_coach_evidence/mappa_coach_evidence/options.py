"""Options of the offer `evidence`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class EvidenceOptions:
    """Options of the coach `evidence`."""

    weights: str | None = None
    """A file of `mappa coach fit evidence`: its weights, made of your labels, rank the actions in place of the shipped
    ones. What is accused stays the same."""
