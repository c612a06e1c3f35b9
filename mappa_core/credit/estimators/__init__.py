"""Estimators: rewards of an iteration's rows to an advantage per sampled token.

All of them see rows of weight above 0 alone: a row of weight 0 enters no return, baseline or normaliser, is no time
step, and gets advantage 0. A weight above 0 scales a row's gradient later on; in the statistics here every such row
counts once. An action that reached its token limit (`truncated`) is an action like any other. They compute in float64
and keep no state. Where `kl_coef` is not 0 the rewards are lowered by it times `old_logprobs - ref_logprobs` (k1,
nats), which penalises leaving the reference policy.

What each estimates the gradient of, R being the reward of an action:

- of each action's own R: `reinforce`, `rloo` without bias; `dr_grpo` but for a factor per group; `grpo`,
  `reinforce_plus_plus`, `reinforce_plus_plus_baseline` but for their normalisers.
- of the sum of R over the agent's own actions from this one on: `gae`, `gigpo`.

Sums over other agents' actions are for shapers to make (`return_to_go`).
"""

from mappa_core.credit.estimators.gae import Gae, GaeOptions
from mappa_core.credit.estimators.gigpo import Gigpo, GigpoOptions
from mappa_core.credit.estimators.grouped import DrGrpo, DrGrpoOptions, Grpo, GrpoOptions, Rloo, RlooOptions
from mappa_core.credit.estimators.reinforce import (
    Reinforce,
    ReinforceOptions,
    ReinforcePlusPlus,
    ReinforcePlusPlusBaseline,
    ReinforcePlusPlusBaselineOptions,
    ReinforcePlusPlusOptions,
)

__all__ = [
    "DrGrpo",
    "DrGrpoOptions",
    "Gae",
    "GaeOptions",
    "Gigpo",
    "GigpoOptions",
    "Grpo",
    "GrpoOptions",
    "Reinforce",
    "ReinforceOptions",
    "ReinforcePlusPlus",
    "ReinforcePlusPlusBaseline",
    "ReinforcePlusPlusBaselineOptions",
    "ReinforcePlusPlusOptions",
    "Rloo",
    "RlooOptions",
]
