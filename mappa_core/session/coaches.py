"""The coaches of a run: who judges whom, live and in hindsight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mappa_core.coaching.bias import Debiased
from mappa_core.config.schema import CoachSection, RunConfig, Use
from mappa_core.errors import ConfigError
from mappa_core.plugins import Registry
from mappa_core.protocols import Coach, Workflow
from mappa_core.rollout.team import Judge


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Panel:
    """All coaches of a run. `judges`, by agent, are those whose live verdicts are asked for; `coaches` holds each coach
    once, in the order of the config."""

    judges: Mapping[str, Judge] = field(default_factory=dict)
    hindsight: Judge | None = None
    coaches: tuple[Debiased, ...] = ()


def build_panel(config: RunConfig, registry: Registry, workflow: Workflow) -> Panel:
    """The coaches that `coach` names. A phase without weight in `coach.reward` is not asked for: its verdicts would be
    paid for and change nothing.

    Raises:
        ConfigError: `coach.reward` gives weight to hindsight, and there is no `coach.hindsight`, or to `again`.
    """
    section = config.coach
    _check_reward(section)
    building = _Building(section, registry, workflow.metric)
    judges = {}
    if section.reward.get("live"):
        judges = {agent: building.judge(section.by_agent.get(agent, section)) for agent in workflow.agents}
    looking_back = building.judge(section.hindsight) if section.hindsight and section.reward.get("after") else None
    return Panel(judges=judges, hindsight=looking_back, coaches=tuple(building.coaches))


def _check_reward(section: CoachSection) -> None:
    if section.reward.get("after") and section.hindsight is None:
        raise ConfigError(
            "coach.reward.after gives weight to verdicts in hindsight, and nobody gives any: set coach.hindsight.use"
        )
    if section.reward.get("again"):
        raise ConfigError("coach.reward.again: verdicts of `mappa recoach` come after training and reward nothing")


class _Building:
    """Builds each coach once: choices of one offer with the same options share its client, limits and state."""

    def __init__(self, section: CoachSection, registry: Registry, metric: str) -> None:
        self.coaches: list[Debiased] = []
        self._section = section
        self._registry = registry
        self._metric = metric
        self._built: list[tuple[Use | CoachSection, Judge]] = []

    def judge(self, chosen: Use | CoachSection) -> Judge:
        for other, judge in self._built:
            if (other.use, other.options) == (chosen.use, chosen.options):
                return judge
        coach = self._watched(self._registry.build("coaches", chosen.use, chosen.options))
        judge = Judge(name=chosen.use, coach=coach)
        self.coaches.append(coach)
        self._built.append((chosen, judge))
        return judge

    def _watched(self, coach: Coach) -> Debiased:
        """`coach` with its preferences learned from the start, whether or not they are taken off some day."""
        bias, strata = self._section.bias, self._section.strata
        return Debiased(coach, bias, strata=strata, metric=self._metric, active=bias.correct)
