"""The exact policy gradient of a decision process, decision by decision; no batch is looked at.

With h a history (all that was sampled so far), d(h) its probability, a an action of agent i at h:

    g = 1/tasks sum_h d(h) c(h) sum_a pi(a|h) Q(h, a) sum_t d log pi(a_t | h, a_<t) / d logits

per trajectory, where Q is what the objective says the action is worth:

* `action`: the verdict r(h, a) of the action itself. The gradient of `sum_h d(h) sum_a pi(a|h) r(h, a)` with d held
  fixed: every decision is a bandit, and nobody is told what an action does to later ones.
* `return`: r(h, a) and all later verdicts of the *same agent*. The sum over agents i of the derivative of agent i's
  expected verdicts by its own policy, the other agents held fixed (also where they share the policy).
* `team`: r(h, a) and all later verdicts of everyone: the gradient of the team's expected sum of verdicts.
* `outcome`: the expected outcome: the gradient of it.

c(h) is the share of its gradient that an action keeps: 1 less the chance that its verdict is missing (which must not
hang on the action), times the expectation of `share(n)` over the number n of trajectories with an action to compare.
"""

from __future__ import annotations

from collections.abc import Callable
from math import comb, log
from typing import Literal

import numpy as np

from mappa_core.records import Float64
from mappa_core.testing.conformance.process import Action, Decision, DecisionProcess, Play, Visit, plays

Objective = Literal["action", "return", "team", "outcome"]
Siblings = Literal["turn", "state", "episode"]
Share = Callable[[int], float]


def policy_gradient(
    process: DecisionProcess,
    objective: Objective,
    *,
    share: Share | None = None,
    siblings: Siblings = "turn",
    kl_coef: float = 0.0,
) -> Float64:
    """The gradient (P,) of the objective per trajectory, by `process.parameters`.

    Args:
        share: what an action keeps of its gradient where n trajectories, its own among them, have a sibling with a
            verdict. None: all.
        siblings: which actions of one task and agent are siblings: those of one `turn`, those after one prompt
            (`state`), or all (`episode`).
        kl_coef: weight of `-KL(pi(.|h) || uniform over the tokens of each table)` of the action, added to its worth.
    """
    gradient = np.zeros(len(process.parameters))
    for visit in process.visits():
        kept = _judged(visit) * _expected_share(process, visit, share, siblings)
        for action in visit.decision.actions:
            worth = worth_of(visit.decision, action, objective) - kl_coef * _gap(process, visit.decision, action)
            score = process.scores(visit.decision, action).sum(axis=0)
            gradient += visit.reach * kept * action.chance * worth * score
    return gradient / len(process.tasks)


def worth_of(decision: Decision, action: Action, objective: Objective) -> float:
    """Q(h, a): what the objective expects of an action, verdicts all there."""
    if objective == "outcome":
        return _outcome(action.then)
    if objective == "action":
        return action.points
    return action.points + to_come(action.then, decision.agent if objective == "return" else None)


def to_come(node: Decision | float, agent: str | None) -> float:
    """The expected sum of verdicts from here on, of one agent or (None) of all."""
    if not isinstance(node, Decision):
        return 0.0
    return sum(
        action.chance * ((action.points if agent in (None, node.agent) else 0.0) + to_come(action.then, agent))
        for action in node.actions
    )


def values(decision: Decision, action: Action) -> Float64:
    """The exact value before each token of an action, (T,): the agent's own verdicts that are to be expected, of this
    decision and of its later ones."""
    found = []
    for place in range(len(action.tokens)):
        begun = [one for one in decision.actions if one.tokens[:place] == action.tokens[:place]]
        chances = [float(np.prod(one.chances[place:])) for one in begun]
        worths = [worth_of(decision, one, "return") for one in begun]
        found.append(float(np.dot(chances, worths)))
    return np.array(found)


def reference_logprobs(process: DecisionProcess, decision: Decision, action: Action) -> Float64:
    """Of a reference policy that is uniform over the tokens of each table, (T,) nats."""
    policy = process.policies[decision.agent]
    return np.array([-log(len(process.tables[policy, context])) for context, _, _ in decision.contexts(action)])


def _outcome(node: Decision | float) -> float:
    if not isinstance(node, Decision):
        return node
    return sum(action.chance * _outcome(action.then) for action in node.actions)


def _gap(process: DecisionProcess, decision: Decision, action: Action) -> float:
    """log pi(a|h) - log reference(a|h): its expectation is the divergence, and its own gradient expects to 0."""
    return log(action.chance) - float(reference_logprobs(process, decision, action).sum())


def _judged(visit: Visit) -> float:
    """The chance that a decision's verdict is there, whatever the action."""
    return sum(action.chance * (1.0 - action.missing) for action in visit.decision.actions)


def _expected_share(process: DecisionProcess, visit: Visit, share: Share | None, siblings: Siblings) -> float:
    """E[share(1 + B)], B binomial: each of the task's other samples has a judged sibling with the same chance."""
    if share is None:
        return 1.0
    others = process.samples - 1
    q = sum(play.chance for play in plays(process.tasks[visit.task]) if _has_sibling(play, visit, siblings))
    return sum(comb(others, n) * q**n * (1.0 - q) ** (others - n) * share(n + 1) for n in range(others + 1))


def _has_sibling(play: Play, visit: Visit, siblings: Siblings) -> bool:
    wanted = visit.decision
    own = [(decision, judged) for (decision, _), judged in zip(play.taken, play.judged, strict=True)]
    own = [(decision, judged) for decision, judged in own if decision.agent == wanted.agent]
    if siblings == "turn":
        return any(judged for _, judged in own[visit.turn : visit.turn + 1])
    return any(judged for decision, judged in own if siblings == "episode" or decision.prompt == wanted.prompt)
