"""A coach that needs no model and no key: it judges any team by what can be checked in its transcript."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from mappa_coach_evidence.options import EvidenceOptions
from mappa_core import Offer, hookimpl

if TYPE_CHECKING:
    from mappa_core import Coach


@hookimpl
def mappa_coaches() -> Iterable[Offer[Coach]]:
    yield Offer("evidence", _build, EvidenceOptions)


def _build(options: EvidenceOptions) -> Coach:
    from mappa_coach_evidence.coach import EvidenceCoach

    return EvidenceCoach(options)
