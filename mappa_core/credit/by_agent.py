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
    result = estimator(experience, state)
    match result:
        case (Advantages(advantages=advantages), Mapping()):
            expected = experience.tokens.shape
            if isinstance(advantages, np.ndarray) and advantages.shape == expected and advantages.dtype.kind == "f":
                return result
            returned = f"{np.shape(advantages)} ({getattr(advantages, 'dtype', type(advantages).__name__)})"
            raise PluginError(f"{name} returned advantages of shape {returned}, not {expected} (float32)")
    raise PluginError(f"{name} returned {type(result).__name__}, not a pair of Advantages and a mapping, its state")


def estimators_by_agent(estimator: Estimator, agents: Collection[str]) -> list[tuple[Estimator, tuple[str, ...]]]:
    """Return every estimator that `estimator` consists of, with those of `agents` that it is used for."""
    if not isinstance(estimator, _PerAgentEstimator):
        return [(estimator, tuple(agents))]
    own = {agent: own_estimator for agent, own_estimator in estimator.by_agent.items() if agent in agents}
    rest = tuple(agent for agent in agents if agent not in own)
    return [(estimator.default, rest), *((own_estimator, (agent,)) for agent, own_estimator in own.items())]


class _PerAgentEstimator:
    def __init__(self, default: Estimator, by_agent: Mapping[str, Estimator]) -> None:
        self.default = default
        self.by_agent = dict(by_agent)

    def __call__(self, experience: Experience, state: Mapping[str, Any]) -> tuple[Advantages, Mapping[str, Any]]:
        unknown = sorted(set(self.by_agent) - set(experience.agents))
        if unknown:
            trained = ", ".join(experience.agents)
            raise ConfigError(f"estimator.by_agent: {unknown[0]!r} is no agent that is trained; those are {trained}")
        is_own = {agent: experience.agent == experience.agents.index(agent) for agent in self.by_agent}
        rest = np.flatnonzero(~np.any(list(is_own.values()), axis=0))
        # An empty state is that of the first iteration.
        states = state or {"default": {}, "by_agent": {agent: {} for agent in is_own}}
        rest_experience = select_rows(experience, rest)
        advantages, default_state = estimate("estimator.use", self.default, rest_experience, states["default"])
        parts = [(rest, advantages)]
        own_states = {}
        for agent, estimator in self.by_agent.items():
            rows = np.flatnonzero(is_own[agent])
            own_experience = select_rows(experience, rows)
            advantages, own_states[agent] = estimate(
                f"estimator.by_agent.{agent}", estimator, own_experience, states["by_agent"][agent]
            )
            parts.append((rows, advantages))
        return _merge(experience, parts), {"default": default_state, "by_agent": own_states}


def _merge(experience: Experience, parts: Sequence[tuple[Int64, Advantages]]) -> Advantages:
    """Merge the advantages of parts of an experience; value targets are NaN at tokens whose estimator has none."""
    advantages = np.zeros(len(experience.tokens), dtype=np.float32)
    targets = np.full_like(advantages, np.nan)
    for rows, part in parts:
        tokens = element_indices(experience.offsets, rows)
        advantages[tokens] = part.advantages
        if part.value_targets is not None:
            targets[tokens] = part.value_targets
    # None and not NaN everywhere: engines train a value head if there are targets.
    has_targets = any(part.value_targets is not None for _, part in parts)
    return Advantages(advantages=advantages, value_targets=targets if has_targets else None)
