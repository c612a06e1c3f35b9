"""Generalised advantage estimation over the tokens of an agent's own actions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mappa_core.credit.estimators.common import (
    ActiveRows,
    TokenKlOptions,
    check_discount,
    scatter_to_tokens,
    token_rewards,
    whiten,
)
from mappa_core.credit.estimators.grouping import AgentTurns
from mappa_core.credit.ragged import element_indices, lengths_to_offsets, returns_to_go
from mappa_core.errors import ConfigError
from mappa_core.experience import Advantages, Experience
from mappa_core.records import Float64


@dataclass
class GaeOptions(TokenKlOptions):
    """GAE with a value head, over the tokens of an agent's own actions."""

    gamma: float = 1.0
    """Discount per sampled token, 0 to 1."""
    lam: float = 0.95
    """Lambda: 1 uses only the observed rewards, 0 only the value of the next token."""


class Gae:
    """GAE (Schulman et al. 2016, arXiv:1506.02438) with a value V per sampled token, predicted before it is sampled.

    The time steps are the tokens that an agent samples in a trajectory, across its actions; what other agents do in
    between is part of the environment. With r_t = -kl_coef * k1_t, plus the action's reward at its last token,

        delta_t = r_t + gamma * V_{t+1} - V_t,    A_t = delta_t + gamma * lam * A_{t+1},

    so an action's last token bootstraps from the first value of the same agent's next action. Value targets are A + V,
    with A before whitening (which is that of `reinforce_plus_plus`).

    - After an agent's last action of a finished trajectory V is 0.
    - A trajectory that ended in an error was cut off: the agent's further return is unknown. Its last action there has
      advantage 0 and no value target and is excluded from the whitening; the action before bootstraps from its first
      value. (With gamma 0 there is no bootstrapping, and the last action is treated like any other.)
    - An action without a reward is not a time step: the one before bootstraps from the next one with a reward.

    With lam 1 the expectation is the gradient of the sum of the agent's own rewards from the action on, for any values
    that depend only on the preceding context; the same holds for any lam with the true values. Otherwise lam trades
    bias for variance. Rewards of one agent are summed, so the shaper `outcome`, which gives the outcome to every
    action, counts it once per action.
    """

    def __init__(self, options: GaeOptions) -> None:
        check_discount("gae", "gamma", options.gamma)
        check_discount("gae", "lam", options.lam)
        self._options = options

    def __call__(self, experience: Experience, state: Mapping[str, Any]) -> tuple[Advantages, Mapping[str, Any]]:
        rows, options = ActiveRows.from_experience(experience), self._options
        turns = AgentTurns.from_rows(experience, rows)
        values = _values(experience, rows)
        is_known = np.ones(len(rows.index), np.bool_)  # (K,) whether the further return is known
        if options.gamma > 0:
            last_rows = turns.order[turns.offsets[1:] - 1]  # (C,) of each chain; none is empty
            is_known[last_rows[~turns.finished]] = False
        is_known_token = np.repeat(is_known, rows.lengths)  # (M,)
        # The chains of an agent's actions, one after the other: `path` orders the tokens so, `ends` are the chains'
        # offsets in it. Within a chain an action's last token is followed by the first of the next action.
        path = element_indices(rows.offsets, turns.order)
        ends = lengths_to_offsets(rows.lengths[turns.order])[turns.offsets]
        next_values = np.append(values[path][1:], 0.0)[: len(path)]  # The slice is for an empty path.
        next_values[ends[1:] - 1] = 0.0
        own = token_rewards(experience, rows, options.kl_coef) - values
        deltas = own[path] + options.gamma * next_values
        # What is unknown passes nothing back. The action before it bootstraps from its first value, which is in
        # `next_values`.
        deltas[~is_known_token[path]] = 0.0
        advantages = np.empty_like(values)
        advantages[path] = returns_to_go(deltas, ends, options.gamma * options.lam)
        # Before whitening, as values are in the unit of rewards.
        targets = advantages + values
        known_rows = ActiveRows.from_indices(experience, rows.index[is_known])
        scaled = whiten(experience, known_rows, advantages[is_known_token], options.normalize)
        return scatter_to_tokens(experience, known_rows, scaled, targets[is_known_token]), state


def _values(experience: Experience, rows: ActiveRows) -> Float64:
    if experience.values is None:
        raise ConfigError(
            "estimator gae: the experience has no values; give the policies that it serves a value head "
            "(policies.NAME.value_head=true)"
        )
    values = experience.values[rows.tokens].astype(np.float64)
    if not np.isfinite(values).all():
        token = np.flatnonzero(~np.isfinite(values))[0]
        # The last row that begins at or before the token.
        row = rows.index[np.searchsorted(rows.offsets, token, side="right") - 1]
        policy = experience.policies[experience.policy[row]]
        raise ConfigError(
            f"estimator gae: policy {policy!r} gave no finite value at step {experience.steps[row]}; "
            f"set policies.{policy}.value_head=true, or, where it has one, look at what it learned"
        )
    return values
