"""What rules find."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from mappa_coach_evidence.transcript import Transcript
from mappa_core.coach import CATEGORIES


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Evidence against the action at `place`, in one sentence that quotes it. `blame`: who is at fault if not the agent
    that acted there."""

    place: int
    reason: str
    blame: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A check of whole transcripts, which may find something in several actions.

    A `hard` one finds what is wrong whatever else was meant, and alone can accuse: `precision` is how often the action
    that it accuses is the decisive one, over labelled sets (docs/evidence/blame.md). A soft one says where to look, by
    weights that stand in `weights.py`; `beside_record`: it does so for teams that keep a record of their progress, too.
    `category` is the kind of failure.
    """

    name: str
    check: Callable[[Transcript], Iterable[Finding]]
    category: str
    precision: float | None = None
    beside_record: bool = False

    def __post_init__(self) -> None:
        if self.category not in CATEGORIES:
            raise ValueError(f"{self.name}: {self.category!r} is no kind of failure")

    @property
    def hard(self) -> bool:
        return self.precision is not None
