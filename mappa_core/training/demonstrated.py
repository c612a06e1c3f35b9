"""Where the recipe has a supervised term: what coaches would rather have seen, put to the experience."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mappa_core.credit.demonstrations import corrections
from mappa_core.experience import Experience
from mappa_core.records import Trajectory
from mappa_core.session import Session


def demonstrated(
    session: Session, experience: Experience, trajectories: Sequence[Trajectory]
) -> tuple[Experience, Mapping[str, int]]:
    """The experience with its demonstrations, and what became of every correction. Without the term nothing is."""
    config, team = session.config, session.team
    if not config.train.supervised.weight:
        return experience, {}
    found = corrections(
        experience,
        trajectories,
        config.coach.reward,
        config.train.supervised,
        encode=lambda policy, text: team.samplers[policy].encode(text),
        max_tokens={agent: sampling.max_tokens for agent, sampling in team.sampling.items()},
        saw_truth=team.reference_for,
    )
    return replace(experience, demonstrations=found.demonstrations), found.counts
