"""What rules find."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from mappa_coach_evidence.transcript import Transcript


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Evidence against the action at `place`, in one sentence."""

    place: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A check of whole transcripts. `confidence` is the probability that its first finding is the decisive error of a
    failed trajectory. `explains_failure`: the evidence is a fault only if the trajectory failed."""

    name: str
    check: Callable[[Transcript], Iterable[Finding]]
    confidence: float
    explains_failure: bool
