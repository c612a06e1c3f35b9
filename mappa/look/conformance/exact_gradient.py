"""The exact policy gradient of a decision process, summed over decisions, without batches.

With h a history (everything sampled so far), d(h) its probability, a an action of agent i at h:

    g = 1/tasks sum_h d(h) c(h) sum_a pi(a|h) Q(h, a) sum_t d log pi(a_t | h, a_<t) / d logits

per trajectory, where Q is the value of the action under the objective:

* `action`: the verdict r(h, a) of the action itself. The gradient of `sum_h d(h) sum_a pi(a|h) r(h, a)` with d held
  fixed: every decision is a bandit, without the effect of an action on later ones.
* `return`: r(h, a) and all later verdicts of the *same agent*. The sum over agents i of the derivative of agent i's
  expected verdicts with respect to its own policy, the other agents held fixed (even if they share the policy).
* `team`: r(h, a) and all later verdicts of everyone: the gradient of the team's expected sum of verdicts.
* `outcome`: the expected outcome: the gradient of it.

c(h) is the share of its gradient that an action keeps: 1 minus the probability that its verdict is missing (which must
not depend on the action), times the expectation of `share(n)` over the number n of trajectories with a sibling.
"""

from __future__ import annotations

from collections.abc import Callable
from math import comb, log
from typing import Literal

import numpy as np

from mappa.look.arrays import Float64
from mappa.look.conformance.decision_process import (
    Action,
    Decision,
    DecisionProcess,
    PossibleTrajectory,
    Visit,
    possible_trajectories,
)

Objective = Literal["action", "return", "team", "outcome"]
SiblingRule = Literal["turn", "state", "episode"]
GradientShare = Callable[[int], float]


def policy_gradient(
    process: DecisionProcess,
    objective: Objective,
    *,
    share: GradientShare | None = None,
    siblings: SiblingRule = "turn",
    kl_coef: float = 0.0,
) -> Float64:
    """Compute the gradient (P,) of the objective per trajectory, by `process.parameters`.

    Args:
        share: share of its gradient that an action keeps if n trajectories, including its own, have a sibling with a
            verdict. None: all.
        siblings: which actions of one task and agent are siblings: those of one `turn`, those after one prompt
            (`state`), or all (`episode`).
        kl_coef: weight of `-KL(pi(.|h) || uniform over the tokens of each table)` of the action, added to its value.
    """
    gradient = np.zeros(len(process.parameters))
    for visit in process.visits():
        kept = _verdict_probability(visit) * _expected_share(process, visit, share, siblings)
        for action in visit.decision.actions:
            worth = action_value(visit.decision, action, objective) - kl_coef * _log_ratio(
                process, visit.decision, action
            )
            score = process.scores(visit.decision, action).sum(axis=0)
            gradient += visit.reach * kept * action.chance * worth * score
    return gradient / len(process.tasks)


def action_value(decision: Decision, action: Action, objective: Objective) -> float:
    """Compute Q(h, a), the value of an action under the objective if no verdict is missing."""
    if objective == "outcome":
        return _outcome(action.then)
    if objective == "action":
        return action.points
    return action.points + expected_future_points(action.then, decision.agent if objective == "return" else None)


def expected_future_points(node: Decision | float, agent: str | None) -> float:
    """Compute the expected sum of verdicts from this node on, of one agent or (None) of all."""
    if not isinstance(node, Decision):
        return 0.0
    return sum(
        action.chance
        * ((action.points if agent in (None, node.agent) else 0.0) + expected_future_points(action.then, agent))
        for action in node.actions
    )


def exact_values(decision: Decision, action: Action) -> Float64:
    """Compute the exact value before each token of an action, (T,): the agent's own expected verdicts, of this decision
    and its later ones."""
    found = []
    for place in range(len(action.tokens)):
        begun = [one for one in decision.actions if one.tokens[:place] == action.tokens[:place]]
        chances = [float(np.prod(one.chances[place:])) for one in begun]
        worths = [action_value(decision, one, "return") for one in begun]
        found.append(float(np.dot(chances, worths)))
    return np.array(found)


def reference_logprobs(process: DecisionProcess, decision: Decision, action: Action) -> Float64:
    """Return log-probabilities of a reference policy that is uniform over the tokens of each table, (T,) nats."""
    policy = process.policies[decision.agent]
    return np.array([-log(len(process.tables[policy, context])) for context, _, _ in decision.contexts(action)])


def _outcome(node: Decision | float) -> float:
    if not isinstance(node, Decision):
        return node
    return sum(action.chance * _outcome(action.then) for action in node.actions)


def _log_ratio(process: DecisionProcess, decision: Decision, action: Action) -> float:
    """Compute log pi(a|h) - log reference(a|h); its expectation is the KL divergence, that of its gradient is 0."""
    return log(action.chance) - float(reference_logprobs(process, decision, action).sum())


def _verdict_probability(visit: Visit) -> float:
    """Compute the probability that a decision's verdict is not missing."""
    return sum(action.chance * (1.0 - action.missing) for action in visit.decision.actions)


def _expected_share(
    process: DecisionProcess, visit: Visit, share: GradientShare | None, siblings: SiblingRule
) -> float:
    """Compute E[share(1 + B)], B binomial: each other sample of the task has a judged sibling with equal
    probability."""
    if share is None:
        return 1.0
    others = process.samples - 1
    q = sum(
        play.chance for play in possible_trajectories(process.tasks[visit.task]) if _has_sibling(play, visit, siblings)
    )
    return sum(comb(others, n) * q**n * (1.0 - q) ** (others - n) * share(n + 1) for n in range(others + 1))


def _has_sibling(play: PossibleTrajectory, visit: Visit, siblings: SiblingRule) -> bool:
    wanted = visit.decision
    own = [(decision, judged) for (decision, _), judged in zip(play.choices, play.judged, strict=True)]
    own = [(decision, judged) for decision, judged in own if decision.agent == wanted.agent]
    if siblings == "turn":
        return any(judged for _, judged in own[visit.turn : visit.turn + 1])
    return any(judged for decision, judged in own if siblings == "episode" or decision.prompt == wanted.prompt)
