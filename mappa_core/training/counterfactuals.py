"""The counterfactual rollouts of a run: what plays them, and what they add."""

from __future__ import annotations

from mappa_core.rollout.counterfactual import Counterfactuals, Extra, extra
from mappa_core.session import Session
from mappa_core.store.folder import RunFolder
from mappa_core.training.tracking import Tracking


def counterfactuals_of(session: Session, folder: RunFolder, tracking: Tracking) -> Counterfactuals | None:
    """What plays the counterfactual rollouts of the run in `folder`; None where there are to be none."""
    config = session.config
    if config.credit.counterfactual.use == "none":
        return None
    return Counterfactuals(
        session.team_for("train"),
        config.credit.counterfactual,
        texts=session.texts,
        store=folder.store,
        recorder=tracking.recorder(folder.store),
        archive=folder.files,
        concurrency=config.sampling.concurrency,
        waves=session.deterministic,
    )


def extra_of(session: Session) -> Extra | None:
    """What they add to every iteration at most; None where there are to be none."""
    config = session.config
    if config.credit.counterfactual.use == "none":
        return None
    return extra(
        config.credit.counterfactual,
        session.workflow.most_turns,
        {agent: sampling.max_tokens for agent, sampling in session.team.sampling.items()},
        config.train.prompts * config.train.samples,
    )
