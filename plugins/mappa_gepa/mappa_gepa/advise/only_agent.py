"""The shaper `only_agent`: one agent of a team learns, and nothing moves the others."""

from __future__ import annotations

from dataclasses import dataclass

from mappa_core import Trajectory


@dataclass
class OnlyAgentOptions:
    agent: str = "???"
    """The agent that learns."""


class OnlyAgentShaper:
    """Keeps the rewards of one agent's actions; the others have none, and so carry no gradient."""

    def __init__(self, options: OnlyAgentOptions) -> None:
        self._agent = options.agent

    def __call__(self, trajectory: Trajectory, rewards: tuple[float | None, ...]) -> tuple[float | None, ...]:
        return tuple(
            reward if step.agent == self._agent else None
            for step, reward in zip(trajectory.steps, rewards, strict=True)
        )
