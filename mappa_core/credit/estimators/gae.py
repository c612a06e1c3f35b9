"""Generalised advantage estimation over the tokens of an agent's own actions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mappa_core.credit.estimators.groups import Chains
from mappa_core.credit.estimators.rows import Normalize, Rows, check_discount, spread, token_rewards, whitened
from mappa_core.credit.ragged import offsets_of, places, returns_to_go
from mappa_core.errors import ConfigError
from mappa_core.experience import Advantages, Experience
from mappa_core.records import Bool, Float64


@dataclass
class GaeOptions:
    """GAE: rewards and a value head's predictions, over the tokens of an agent's own actions."""

    gamma: float = 1.0
    """Discount per sampled token, 0 to 1."""
    lam: float = 0.95
    """Lambda: 1 trusts the rewards that came alone, 0 the value of the next token alone."""
    kl_coef: float = 0.01
    """Reward taken off per nat that a sampled token is likelier than under the reference policy; 0: no reference."""
    normalize: Normalize = "policy"
    """Whose tokens share one mean and one standard deviation; `none` leaves the advantages as they are."""


class Gae:
    """GAE (Schulman et al. 2016, arXiv:1506.02438) with a value V per sampled token, before it is sampled.

    The time steps are the tokens that an agent samples in a trajectory, action after action; what others do between
    them is its environment. With r_t = -kl_coef * k1_t, and the action's reward added at its last token,

        delta_t = r_t + gamma * V_{t+1} - V_t,    A_t = delta_t + gamma * lam * A_{t+1},

    so an action's last token looks on to the first value of the same agent's next action. Value targets are A + V, from
    the advantages before they are whitened (as in `reinforce_plus_plus`).

    - After an agent's last action of a finished trajectory V is 0.
    - A trajectory that ended in an error was cut off, not over: how the agent would have gone on is unknown. So its
      last action there has advantage 0, no value target, and no part in the whitening; the one before looks on to its
      first value and no further. (With gamma 0 nothing is looked on to, and nothing unknown.)
    - An action whose reward is missing is no time step: the one before looks on to the next one that has a reward.
    - An action that reached its token limit is one like any other: the next prompt goes on from what there is of it.

    With lam 1 the expectation is the gradient of the sum of the agent's own rewards from the action on, whatever the
    values, as long as they hang on nothing but what was read before; so it is with any lam and the true values. Any
    other lam trades bias for variance. Rewards of one agent are added up, so the shaper `outcome`, which gives the
    outcome to every action, counts it once for each.
    """

    def __init__(self, options: GaeOptions) -> None:
        check_discount("gae", "gamma", options.gamma)
        check_discount("gae", "lam", options.lam)
        self._options = options

    def __call__(self, experience: Experience, state: Mapping[str, Any]) -> tuple[Advantages, Mapping[str, Any]]:
        rows, options = Rows.of(experience), self._options
        chains = Chains.of(experience, rows)
        values = _values(experience, rows)
        known = _known(chains) if options.gamma > 0 else np.ones(len(rows.index), np.bool_)
        tokens = np.repeat(known, rows.lengths)
        path = places(rows.offsets, chains.order)
        ends = offsets_of(rows.lengths[chains.order])[chains.offsets]
        ahead = np.append(values[path][1:], 0.0)[: len(path)]
        ahead[ends[1:] - 1] = 0.0
        deltas = (token_rewards(experience, rows, options.kl_coef) - values)[path] + options.gamma * ahead
        deltas[~tokens[path]] = 0.0
        advantages = np.empty_like(values)
        advantages[path] = returns_to_go(deltas, ends, options.gamma * options.lam)
        targets = advantages + values
        some = Rows.at(experience, rows.index[known])
        scaled = whitened(experience, some, advantages[tokens], options.normalize)
        return spread(experience, some, scaled, targets[tokens]), state


def _values(experience: Experience, rows: Rows) -> Float64:
    """The values of the rows' tokens, (M,)."""
    if experience.values is None:
        raise ConfigError(
            "estimator gae: the experience has no values; give the policies that it serves a value head "
            "(policies.NAME.value_head=true)"
        )
    values = experience.values[rows.tokens].astype(np.float64)
    if not np.isfinite(values).all():
        token = np.flatnonzero(~np.isfinite(values))[0]
        row = rows.index[np.searchsorted(rows.offsets, token, side="right") - 1]
        policy = experience.policies[experience.policy[row]]
        raise ConfigError(
            f"estimator gae: policy {policy!r} gave no finite value at step {experience.steps[row]}; "
            f"set policies.{policy}.value_head=true, or, where it has one, look at what it learned"
        )
    return values


def _known(chains: Chains) -> Bool:
    """The rows after which it is known how their agent went on, or that it did not, (K,)."""
    known = np.ones(len(chains.order), np.bool_)
    known[chains.order[chains.offsets[1:][~chains.finished] - 1]] = False
    return known
