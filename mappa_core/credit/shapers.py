"""Reward shapers, which transform the rewards of one trajectory and are chained in a recipe's order.

The initial rewards are a coach's points (0-10). A missing reward is None and stays None unless the shaper's formula
does not use it.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Literal

from mappa_core.credit.counterfactual import counterfactual_credit
from mappa_core.errors import ConfigError
from mappa_core.protocols import Rewards, Workflow
from mappa_core.records import MAX_SCORE, Step, Trajectory


@dataclass
class ScaleOptions:
    """Maps source_low..source_high linearly to low..high; values outside are extrapolated."""

    source_low: float = 0.0
    """Reward that is mapped to `low`; a coach's worst score is 0 points."""
    source_high: float = MAX_SCORE
    """Reward that is mapped to `high`; a coach's best score is 10 points."""
    low: float = 0.0
    """New value of source_low."""
    high: float = 1.0
    """New value of source_high."""


class ScaleShaper:
    """Linear rescaling: `low + (r - source_low) * (high - low) / (source_high - source_low)`."""

    def __init__(self, options: ScaleOptions) -> None:
        if options.source_low == options.source_high:
            raise ConfigError(f"scale: source_low and source_high are both {options.source_low:g}; they must differ")
        self._options = options

    def __call__(self, trajectory: Trajectory, rewards: Rewards) -> Rewards:
        options = self._options
        slope = (options.high - options.low) / (options.source_high - options.source_low)
        return tuple(
            None if reward is None else options.low + (reward - options.source_low) * slope for reward in rewards
        )


@dataclass
class MetricOptions:
    """Options of a shaper that reads an outcome."""

    metric: str | None = None
    """Key of the outcome; the workflow's main metric by default."""

    def read_metric(self) -> str:
        """The key; outside a run, where no workflow says another, that of a workflow by default."""
        return Workflow.metric if self.metric is None else self.metric


@dataclass
class OutcomeOptions(MetricOptions):
    """Gives every action the trajectory's outcome and ignores the coach: the outcome-only baseline."""

    scale: float = 1.0
    """Factor from the outcome's unit to the reward's."""


class OutcomeShaper:
    """`r := scale * outcome` for every action, None for all if the trajectory has no such outcome."""

    def __init__(self, options: OutcomeOptions) -> None:
        self._options = options

    def __call__(self, trajectory: Trajectory, rewards: Rewards) -> Rewards:
        outcome = trajectory.outcome.get(self._options.read_metric())
        reward = None if outcome is None else self._options.scale * outcome
        return (reward,) * len(rewards)


@dataclass
class OutcomeMixOptions(MetricOptions):
    """Adds the trajectory's outcome to every action's own reward."""

    process_weight: float = 0.7
    """Factor of the action's own reward. Bring it to the outcome's range with `scale` first."""
    outcome_weight: float = 0.3
    """Factor of the outcome."""


class OutcomeMixShaper:
    """`r := process_weight * r + outcome_weight * outcome`.

    A missing reward stays missing. If the trajectory lacks the outcome, all are missing unless outcome_weight is 0.
    """

    def __init__(self, options: OutcomeMixOptions) -> None:
        self._options = options

    def __call__(self, trajectory: Trajectory, rewards: Rewards) -> Rewards:
        options = self._options
        # A weight of 0 does not use the outcome, so it may be missing.
        outcome = 0.0 if options.outcome_weight == 0 else trajectory.outcome.get(options.read_metric())
        if outcome is None:
            return (None,) * len(rewards)
        return tuple(
            None if reward is None else options.process_weight * reward + options.outcome_weight * outcome
            for reward in rewards
        )


@dataclass
class DifferenceOptions(MetricOptions):
    """Gives every action its counterfactual credit (`credit.counterfactual`)."""

    weight: float = 1.0
    """Factor from the outcome's unit to the reward's."""
    process_weight: float = 0.0
    """Factor of the action's own reward, which is added. Bring it to the outcome's range with `scale` first."""


class DifferenceShaper:
    """`r := weight * credit + process_weight * r`, where credit is the outcome minus the mean outcome of counterfactual
    rollouts (see `counterfactual_credit`).

    None if the credit is missing, or if `r` is and process_weight is not 0.
    """

    def __init__(self, options: DifferenceOptions) -> None:
        self._options = options

    def __call__(self, trajectory: Trajectory, rewards: Rewards) -> Rewards:
        options = self._options
        # A weight of 0 does not use the action's own reward, so it may be missing.
        own_rewards = (0.0,) * len(rewards) if options.process_weight == 0 else rewards
        shaped: list[float | None] = []
        for step, own in zip(trajectory.steps, own_rewards, strict=True):
            credit = counterfactual_credit(trajectory, step.position, options.read_metric()).value
            if credit is None or own is None:
                shaped.append(None)
            else:
                shaped.append(options.weight * credit + options.process_weight * own)
        return tuple(shaped)


@dataclass
class ReturnToGoOptions:
    """Adds the discounted rewards of later actions to earlier ones."""

    gamma: float = 1.0
    """Discount per action, 0 to 1."""
    across: Literal["agents", "own"] = "agents"
    """`agents`: all later actions of the trajectory; `own`: the later actions of the same agent."""


class ReturnToGoShaper:
    """`G_k = r_k + gamma * G_next(k)` over the actions of a trajectory in order.

    A return that includes a missing reward is missing. Unless gamma is 0, so are all returns of a trajectory that ended
    in an error, since its remaining actions are missing. With missing verdicts, actions with few later actions thus
    keep their return more often than those with many: a bias towards short trajectories.
    """

    def __init__(self, options: ReturnToGoOptions) -> None:
        if not 0.0 <= options.gamma <= 1.0:
            raise ConfigError(f"return_to_go: gamma is {options.gamma:g}; it must lie between 0 and 1")
        self._options = options

    def __call__(self, trajectory: Trajectory, rewards: Rewards) -> Rewards:
        gamma = self._options.gamma
        if gamma == 0:
            return rewards
        if trajectory.error is not None:
            return (None,) * len(rewards)
        # Return of the later actions of each chain; of one chain for all agents, unless each has its own.
        to_go: dict[str, float | None] = defaultdict(float)
        returns: list[float | None] = []
        for step, reward in zip(reversed(trajectory.steps), reversed(rewards), strict=True):
            chain = step.agent if self._options.across == "own" else ""
            later = to_go[chain]
            # A missing reward makes this return and all earlier ones of the chain missing.
            to_go[chain] = None if reward is None or later is None else reward + gamma * later
            returns.append(to_go[chain])
        return tuple(reversed(returns))


@dataclass
class LengthPenaltyOptions:
    """Penalises actions that come close to the token limit."""

    limit: int
    """Sampled tokens at which the full penalty applies; usually the agent's `max_tokens`."""
    buffer: int
    """Tokens before the limit over which the penalty grows from 0."""
    factor: float = 1.0
    """Full penalty, in the reward's unit."""


class LengthPenaltyShaper:
    """Soft overlong punishment (DAPO, Yu et al. 2025, eq. 13): `r -= factor * excess / buffer` with
    `excess = clip(tokens - (limit - buffer), 0, buffer)`, for the sampled tokens of each action.

    Actions without tokens (policies behind an API) keep their reward: their length is unknown, and they are not
    trained.
    """

    def __init__(self, options: LengthPenaltyOptions) -> None:
        if not 0 < options.buffer <= options.limit:
            raise ConfigError(f"length_penalty: buffer is {options.buffer}; it must lie between 1 and {options.limit}")
        self._options = options

    def __call__(self, trajectory: Trajectory, rewards: Rewards) -> Rewards:
        return tuple(
            None if reward is None else reward - self._penalty(step)
            for step, reward in zip(trajectory.steps, rewards, strict=True)
        )

    def _penalty(self, step: Step) -> float:
        options = self._options
        if step.completion.tokens is None:
            return 0.0
        excess = len(step.completion.tokens) - (options.limit - options.buffer)
        return options.factor * min(max(excess, 0), options.buffer) / options.buffer
