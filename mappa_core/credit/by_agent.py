"""Per-agent advantage estimators."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from mappa_core.credit.build_experience import select_rows
from mappa_core.credit.ragged import element_indices
from mappa_core.errors import ConfigError, PluginError
from mappa_core.experience import Advantages, Experience
from mappa_core.protocols import Estimator
from mappa_core.records import Int64


def combine_estimators(default: Estimator, by_agent: Mapping[str, Estimator]) -> Estimator:
    """Combine estimators: each agent in `by_agent` uses its own, all others use `default`.

    Each estimator sees only its rows, so a mean per policy covers only the policy's rows among them. States are
    separate: `{"default": state, "by_agent": {agent: state}}`.
    """
    return _PerAgentEstimator(default, by_agent) if by_agent else default


def estimate(
    name: str, estimator: Estimator, experience: Experience, state: Mapping[str, Any]
) -> tuple[Advantages, Mapping[str, Any]]:
    """Call the estimator that the setting `name` chose. Raises PluginError if it does not return a number per token."""
    match result := estimator(experience, state):
        case (Advantages(advantages=found), Mapping()):
            wanted = experience.tokens.shape
            if isinstance(found, np.ndarray) and (found.shape, found.dtype.kind) == (wanted, "f"):
                return result
            given = f"{np.shape(found)} ({getattr(found, 'dtype', type(found).__name__)})"
            raise PluginError(f"{name} returned advantages of shape {given}, not {wanted} (float32)")
    raise PluginError(f"{name} returned {type(result).__name__}, not a pair of Advantages and a mapping, its state")


def estimators_by_agent(estimator: Estimator, agents: Collection[str]) -> list[tuple[Estimator, tuple[str, ...]]]:
    """Return every estimator that `estimator` consists of, with those of `agents` that it is used for."""
    if not isinstance(estimator, _PerAgentEstimator):
        return [(estimator, tuple(agents))]
    own = {agent: one for agent, one in estimator.by_agent.items() if agent in agents}
    rest = tuple(agent for agent in agents if agent not in own)
    return [(estimator.default, rest), *((one, (agent,)) for agent, one in own.items())]


class _PerAgentEstimator:
    def __init__(self, default: Estimator, by_agent: Mapping[str, Estimator]) -> None:
        self.default = default
        self.by_agent = dict(by_agent)

    def __call__(self, experience: Experience, state: Mapping[str, Any]) -> tuple[Advantages, Mapping[str, Any]]:
        if unknown := sorted(set(self.by_agent) - set(experience.agents)):
            trained = ", ".join(experience.agents)
            raise ConfigError(f"estimator.by_agent: {unknown[0]!r} is no agent that is trained; those are {trained}")
        own = {agent: experience.agent == experience.agents.index(agent) for agent in self.by_agent}
        rest = np.flatnonzero(~np.any(list(own.values()), axis=0))
        states = state or {"default": {}, "by_agent": {agent: {} for agent in own}}
        advantages, after = estimate("estimator.use", self.default, select_rows(experience, rest), states["default"])
        parts, after_own = [(rest, advantages)], {}
        for agent, estimator in self.by_agent.items():
            rows = np.flatnonzero(own[agent])
            own_rows, state_before = select_rows(experience, rows), states["by_agent"][agent]
            advantages, after_own[agent] = estimate(f"estimator.by_agent.{agent}", estimator, own_rows, state_before)
            parts.append((rows, advantages))
        return _merge(experience, parts), {"default": after, "by_agent": after_own}


def _merge(experience: Experience, parts: Sequence[tuple[Int64, Advantages]]) -> Advantages:
    """Merge the advantages of parts of an experience; value targets are NaN at tokens whose estimator has none."""
    advantages = np.zeros(len(experience.tokens), dtype=np.float32)
    targets = np.full_like(advantages, np.nan)
    for rows, part in parts:
        tokens = element_indices(experience.offsets, rows)
        advantages[tokens] = part.advantages
        if part.value_targets is not None:
            targets[tokens] = part.value_targets
    valued = any(part.value_targets is not None for _, part in parts)
    return Advantages(advantages=advantages, value_targets=targets if valued else None)
