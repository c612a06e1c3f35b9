"""What a run recorded of its policies' health: the warnings that were raised."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from mappa_core.store.reader import Reader
from mappa_core.training.health import HealthWarning


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned:
    """A warning of a policy's health, raised after `iteration`."""

    iteration: int
    rule: str
    policy: str
    text: str


def warnings_of(reader: Reader) -> tuple[Warned, ...]:
    """All warnings of the run that `reader` reads, in their order; those of an iteration that was played again once."""
    found = {}
    for event in reader.events("health"):
        for one in msgspec.convert(event.body["warnings"], tuple[HealthWarning, ...]):
            key = (event.body["iteration"], one.rule, one.policy)
            found[key] = Warned(iteration=key[0], rule=one.rule, policy=one.policy, text=str(one))
    return tuple(found[key] for key in sorted(found))
