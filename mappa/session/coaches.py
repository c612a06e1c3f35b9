"""Coaches of a run: which coach judges which agent, live and in hindsight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mappa.config.compose import OfferChoice, choices_in
from mappa.rollout.named_coach import NamedCoach
from mappa_core.calls.options import CallLimits
from mappa_core.config.schema import CoachSection, RunConfig, Use
from mappa_core.errors import ConfigError
from mappa_core.plugins import Registry
from mappa_core.protocols import Coach, Workflow


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunCoaches:
    """Coaches of a run: by agent for live verdicts, for hindsight, and each once, in the order of the config."""

    coach_of: Mapping[str, NamedCoach] = field(default_factory=dict)
    hindsight: NamedCoach | None = None
    coaches: tuple[Coach, ...] = ()


def build_coaches(config: RunConfig, registry: Registry, workflow: Workflow) -> RunCoaches:
    """Build the coaches that `coach` names. A phase without weight in `coach.reward` gets no coach: its verdicts would
    cost money and change nothing. Raises ConfigError for hindsight with a coach or a weight alone, or for `again`."""
    section = config.coach
    _check_reward(section)
    builder = _CoachBuilder(registry, section.timeout_s)
    judged = workflow.agents if section.reward.get("live") else ()
    coach_of = {agent: builder.build(section.by_agent.get(agent, section)) for agent in judged}
    hindsight = builder.build(section.hindsight) if section.hindsight and section.reward.get("after") else None
    coaches = tuple(judge.coach for _, judge in builder.built)
    return RunCoaches(coach_of=coach_of, hindsight=hindsight, coaches=coaches)


def _check_reward(section: CoachSection) -> None:
    if section.reward.get("after") and section.hindsight is None:
        raise ConfigError(
            "coach.reward.after gives weight to verdicts in hindsight, and nobody gives any: set coach.hindsight.use"
        )
    if section.hindsight is not None and not section.reward.get("after"):
        raise ConfigError(
            f"coach.hindsight.use={section.hindsight.use} would never be asked: its verdicts have no weight. Set "
            "coach.reward.after=1 (coach.reward.live stays beside it unless set to 0), or coach.hindsight=null"
        )
    if section.reward.get("again"):
        raise ConfigError(
            "coach.reward.again: verdicts of `mappa judge` come after training and reward nothing; give live or "
            "after the weight"
        )


class _CoachBuilder:
    """Builds each coach once: sections with the same offer and options share its client, limits and state."""

    def __init__(self, registry: Registry, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._registry = registry
        self.built: list[tuple[OfferChoice, NamedCoach]] = []

    def build(self, chosen: Use | CoachSection) -> NamedCoach:
        # A search, because options are dataclasses that need not be hashable.
        for other, judge in self.built:
            if (other.use, other.options) == (chosen.use, chosen.options):
                return judge
        _check_timeout(chosen, self._timeout_s)
        judge = NamedCoach(name=chosen.use, coach=self._registry.build("coaches", chosen.use, chosen.options))
        self.built.append((chosen, judge))
        return judge


def _check_timeout(chosen: OfferChoice, timeout_s: float) -> None:
    """Raise ConfigError if the attempts of one call, also of a coach in the options, may take longer than a verdict."""
    limits = getattr(chosen.options, "limits", None)
    if isinstance(limits, CallLimits):
        # Without the waits between attempts, during which the deadline of a verdict runs on, too: those are short.
        needed_s = limits.attempts * limits.timeout_s
        if needed_s > timeout_s:
            raise ConfigError(
                f"coach.timeout_s={timeout_s:g}: of {chosen.use}, limits.attempts={limits.attempts} times "
                f"limits.timeout_s={limits.timeout_s:g} does not fit; raise it to {needed_s:g}, or lower them"
            )
    for _, part in choices_in(chosen.options, ""):
        _check_timeout(part, timeout_s)
