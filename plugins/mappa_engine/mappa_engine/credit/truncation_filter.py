"""The shaper `truncation_filter`."""

from __future__ import annotations

from dataclasses import dataclass

from mappa_core import Rewards, Trajectory


@dataclass
class TruncationFilterOptions:
    """Takes the reward from actions that hit their token limit."""


class TruncationFilterShaper:
    """`r := None` where the action was cut off at its token limit (overlong filtering; DAPO, Yu et al. 2025,
    arXiv:2503.14476, section 3.4): what an unfinished action would have been worth is unknown.

    A row without a reward has no gradient and is in no baseline, normaliser or mean. It biases towards actions that
    end: of what a policy does near its limit only the short part is learned from. Behind `return_to_go`, earlier
    actions keep their returns; before it, they lose them.
    """

    def __init__(self, options: TruncationFilterOptions) -> None:
        pass

    def __call__(self, trajectory: Trajectory, rewards: Rewards) -> Rewards:
        pairs = zip(trajectory.steps, rewards, strict=True)
        return tuple(None if step.truncated else reward for step, reward in pairs)
