"""Another estimator for some agents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mappa_core.credit.experience import take
from mappa_core.credit.ragged import places
from mappa_core.errors import ConfigError
from mappa_core.experience import Advantages, Experience
from mappa_core.protocols import Estimator
from mappa_core.records import Int64

DEFAULT = "default"
BY_AGENT = "by_agent"


def combine(default: Estimator, by_agent: Mapping[str, Estimator]) -> Estimator:
    """One estimator that gives the rows of each agent in `by_agent` to that agent's own, all others to `default`.

    Each sees its rows alone, so a mean per policy is one over the policy's rows among them. States are kept apart:
    `{"default": state, "by_agent": {agent: state}}`.
    """
    return _ByAgent(default, by_agent) if by_agent else default


class _ByAgent:
    def __init__(self, default: Estimator, by_agent: Mapping[str, Estimator]) -> None:
        self._default = default
        self._by_agent = dict(by_agent)

    def __call__(self, experience: Experience, state: Mapping[str, Any]) -> tuple[Advantages, Mapping[str, Any]]:
        unknown = sorted(set(self._by_agent) - set(experience.agents))
        if unknown:
            trained = ", ".join(experience.agents)
            raise ConfigError(f"estimator.by_agent: {unknown[0]!r} is no agent that is trained; those are {trained}")
        own = {agent: experience.agent == experience.agents.index(agent) for agent in self._by_agent}
        rest = np.flatnonzero(~np.any(list(own.values()), axis=0))
        states = state or {DEFAULT: {}, BY_AGENT: {agent: {} for agent in own}}
        advantages, after = self._default(take(experience, rest), states[DEFAULT])
        parts, after_own = [(rest, advantages)], {}
        for agent, estimator in self._by_agent.items():
            rows = np.flatnonzero(own[agent])
            advantages, after_own[agent] = estimator(take(experience, rows), states[BY_AGENT][agent])
            parts.append((rows, advantages))
        return _merged(experience, parts), {DEFAULT: after, BY_AGENT: after_own}


def _merged(experience: Experience, parts: Sequence[tuple[Int64, Advantages]]) -> Advantages:
    """Parts of an experience put together; value targets are NaN at tokens whose estimator has none."""
    advantages = np.zeros(len(experience.tokens), dtype=np.float32)
    targets = np.full(len(experience.tokens), np.nan, dtype=np.float32)
    for rows, part in parts:
        tokens = places(experience.offsets, rows)
        advantages[tokens] = part.advantages
        if part.value_targets is not None:
            targets[tokens] = part.value_targets
    valued = any(part.value_targets is not None for _, part in parts)
    return Advantages(advantages=advantages, value_targets=targets if valued else None)
