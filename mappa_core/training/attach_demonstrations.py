"""Demonstrations for the supervised term: corrections of coaches added to the experience."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mappa_core.credit.demonstrations import collect_demonstrations
from mappa_core.experience import Experience
from mappa_core.records import Trajectory
from mappa_core.session import Session


def attach_demonstrations(
    session: Session, experience: Experience, trajectories: Sequence[Trajectory]
) -> tuple[Experience, Mapping[str, int]]:
    """Attach demonstrations to the experience; count corrections by fate. A no-op without the supervised term."""
    config, team = session.config, session.team
    if not config.train.supervised.weight:
        return experience, {}
    demonstrations = collect_demonstrations(
        experience,
        trajectories,
        config.coach.reward,
        config.train.supervised,
        encode=lambda policy, text: team.samplers[policy].encode(text),
        max_tokens={agent: sampling.max_tokens for agent, sampling in team.sampling.items()},
        saw_truth=team.reference_for,
    )
    return replace(experience, demonstrations=demonstrations.demonstrations), demonstrations.counts
