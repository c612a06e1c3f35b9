"""What a run records of its team when it starts, so that nobody who looks at it needs its plugins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mappa_core.records import Role, ToolSpec

TEAM_EVENT = "team"


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamRecord:
    """The team of a run: the roles of its agents and the tools it had, by name; `metric` and `figures` are the outcomes
    that its workflow reports. The tools of an imported run are not known."""

    agents: Mapping[str, Role]
    metric: str
    figures: tuple[str, ...] = ()
    tools: Mapping[str, ToolSpec] = field(default_factory=dict)
