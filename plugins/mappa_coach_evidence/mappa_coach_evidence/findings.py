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
    """A check of whole transcripts, which may find something in several actions; what that weighs stands in
    `weights.py`. `explains_failure`: the evidence is a fault only if the trajectory failed. `beside_record`: teams that
    keep a record of their progress are checked, too."""

    name: str
    check: Callable[[Transcript], Iterable[Finding]]
    explains_failure: bool
    beside_record: bool
