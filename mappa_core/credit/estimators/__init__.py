"""Advantage estimators: compute an advantage per sampled token from the rewards of an iteration's rows.

A row of weight 0 enters no return, baseline or normaliser, is not a time step, and has advantage 0; every other row
counts once, whatever its weight, which scales its gradient later. Actions that reached their token limit (`truncated`)
are treated like any other. Estimators compute in float64 and keep no state. `kl_coef` times `old_logprobs -
ref_logprobs` (k1, nats) is subtracted from the rewards, which penalises divergence from the reference policy.

The estimated objective, R being the reward of an action:

- each action's own R: `reinforce`, `rloo` without bias; `dr_grpo` up to a factor per group; `grpo`,
  `reinforce_plus_plus`, `reinforce_plus_plus_baseline` up to their normalisers.
- the sum of R over the agent's own actions from this one on: `gae`, `gigpo`.

Sums over other agents' actions are the task of shapers (`return_to_go`).
"""

from mappa_core.credit.estimators.gae import Gae as Gae
from mappa_core.credit.estimators.gae import GaeOptions as GaeOptions
from mappa_core.credit.estimators.gigpo import Gigpo as Gigpo
from mappa_core.credit.estimators.gigpo import GigpoOptions as GigpoOptions
from mappa_core.credit.estimators.grpo import DrGrpo as DrGrpo
from mappa_core.credit.estimators.grpo import DrGrpoOptions as DrGrpoOptions
from mappa_core.credit.estimators.grpo import Grpo as Grpo
from mappa_core.credit.estimators.grpo import GrpoOptions as GrpoOptions
from mappa_core.credit.estimators.grpo import Rloo as Rloo
from mappa_core.credit.estimators.grpo import RlooOptions as RlooOptions
from mappa_core.credit.estimators.reinforce import Reinforce as Reinforce
from mappa_core.credit.estimators.reinforce import ReinforceOptions as ReinforceOptions
from mappa_core.credit.estimators.reinforce import ReinforcePlusPlus as ReinforcePlusPlus
from mappa_core.credit.estimators.reinforce import ReinforcePlusPlusBaseline as ReinforcePlusPlusBaseline
from mappa_core.credit.estimators.reinforce import ReinforcePlusPlusBaselineOptions as ReinforcePlusPlusBaselineOptions
from mappa_core.credit.estimators.reinforce import ReinforcePlusPlusOptions as ReinforcePlusPlusOptions
