"""Figures of a crash test: how often the coach finds a planted fault, by kind and by agent, with 95 % intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mappa.evaluation.statistics import share_interval
from mappa_core.records import Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantedPlay:
    """A play with a fault of `kind` planted in the action of `agent` at `position`. `broke`: the team then failed;
    `changed`: a later action or the outcome is another one. The coach blames `blamed_agent` for the action at
    `blamed_position`; None: nobody. `agents` and `actions` count those that it could have blamed."""

    kind: str
    agent: str
    position: int
    task: str
    trajectory: str
    broke: bool
    changed: bool
    blamed_agent: str | None
    blamed_position: int | None
    agents: int
    actions: int

    @property
    def found_agent(self) -> bool:
        return self.blamed_agent == self.agent

    @property
    def found_step(self) -> bool:
        return self.blamed_position == self.position


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRate:
    """Of the `plays` that a fault broke: the shares in which the guilty agent and step were blamed, and what a pick at
    random comes to. `absorbed` plays changed and succeeded all the same; `unchanged` ones did not change. Of both,
    `noticed` blame the guilty agent."""

    plays: int
    agent: Interval | None
    agent_by_chance: float | None
    step: Interval | None
    step_by_chance: float | None
    absorbed: int
    unchanged: int
    noticed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashFigures:
    """Figures of one coach. `faultless` plays succeeded with nothing planted; in `blamed_faultless` of them, which are
    listed, it blamed an agent. `left_out` counts what was not played, by reason."""

    coach: str
    plays: int
    succeeded: int
    faultless: int
    blamed_faultless: tuple[str, ...]
    kinds: int
    overall: FoundRate
    by_kind: Mapping[str, FoundRate]
    by_agent: Mapping[str, FoundRate]
    left_out: Mapping[str, int]


def compute_found_rate(plays: Sequence[PlantedPlay]) -> FoundRate:
    """The rates over `plays`; intervals are by task."""
    broken = [one for one in plays if one.broke]
    intact = [one for one in plays if not one.broke]
    return FoundRate(
        plays=len(broken),
        agent=_share([one.found_agent for one in broken], broken),
        agent_by_chance=_mean([1 / one.agents for one in broken]),
        step=_share([one.found_step for one in broken], broken),
        step_by_chance=_mean([1 / one.actions for one in broken]),
        absorbed=sum(one.changed for one in intact),
        unchanged=sum(not one.changed for one in intact),
        noticed=sum(one.found_agent for one in intact),
    )


def _share(found: Sequence[bool], plays: Sequence[PlantedPlay]) -> Interval | None:
    return share_interval([float(one) for one in found], [one.task for one in plays]) if found else None


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
