"""Which agent's prompt is changed next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from mappa_core import Trajectory
from mappa_gepa.feedback import blame_points


class BlameChoice:
    """Chooses the agent with most blame on the minibatch, as the library's component selector. Each proposal for an
    agent from the same candidate divides its blame further (by 2, 3, …), so that a prompt that cannot be mended does
    not keep the others from their turn."""

    def __init__(self, agents: Collection[str]) -> None:
        self._agents = agents
        self._tries: Counter[tuple[int, str]] = Counter()

    def __call__(
        self,
        state: Any,
        trajectories: Sequence[Sequence[Trajectory]],
        subsample_scores: Sequence[float],
        candidate_idx: int,
        candidate: dict[str, str],
    ) -> list[str]:
        played = [trajectory for samples in trajectories for trajectory in samples]
        points = blame_points(played, self._agents)
        chosen = max(self._agents, key=lambda agent: points[agent] / (1 + self._tries[candidate_idx, agent]))
        if not points[chosen]:
            return []
        self._tries[candidate_idx, chosen] += 1
        return [chosen]
