"""Reads the health warnings that a run raised for its policies."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from mappa_core.store.iteration_report import HealthWarning
from mappa_core.store.queries import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class RaisedWarning:
    """A warning of a policy's health, raised after `iteration`."""

    iteration: int
    rule: str
    policy: str
    text: str


def find_warnings(events: Iterable[Event]) -> tuple[RaisedWarning, ...]:
    """Find all warnings in order; those of an iteration that was repeated after a resume appear once."""
    found = {}
    for event in events:
        for one in msgspec.convert(event.body["warnings"], tuple[HealthWarning, ...]):
            key = (event.body["iteration"], one.rule, one.policy)
            found[key] = RaisedWarning(iteration=key[0], rule=one.rule, policy=one.policy, text=str(one))
    return tuple(found[key] for key in sorted(found))
