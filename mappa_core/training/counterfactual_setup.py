"""Counterfactual rollouts of a run: builds their collector and bounds their cost."""

from __future__ import annotations

from mappa_core.rollout.counterfactual import CounterfactualBound, CounterfactualCollector, bound_counterfactuals
from mappa_core.session import Session
from mappa_core.store.folder import RunFolder
from mappa_core.training.tracker_threads import TrackerThreads


def build_counterfactual_collector(
    session: Session, folder: RunFolder, tracking: TrackerThreads
) -> CounterfactualCollector | None:
    """Build the collector of counterfactual rollouts of the run in `folder`; None if they are off."""
    config = session.config
    if config.credit.counterfactual.use == "none":
        return None
    return CounterfactualCollector(
        session.team_for("train"),
        config.credit.counterfactual,
        default_actions=session.default_actions,
        store=folder.store,
        recorder=tracking.recorder(folder.store),
        archive=folder.files,
        concurrency=config.sampling.concurrency,
        waves=session.deterministic,
    )


def counterfactual_bound(session: Session) -> CounterfactualBound | None:
    """Upper bound of what counterfactual rollouts add to every iteration; None if they are off."""
    config = session.config
    if config.credit.counterfactual.use == "none":
        return None
    return bound_counterfactuals(
        config.credit.counterfactual,
        session.workflow.max_turns,
        {agent: sampling.max_tokens for agent, sampling in session.team.sampling.items()},
        config.train.prompts * config.train.samples,
    )
