"""What counterfactual credit needs of a recipe: agents that there are, a text where it is the default, a reader."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mappa_core.config.schema import RunConfig
from mappa_core.credit.shapers import Difference
from mappa_core.errors import ConfigError
from mappa_core.protocols import Shaper, Workflow


def default_texts(config: RunConfig, workflow: Workflow) -> Mapping[str, str]:
    """What each agent says by default: the texts of the config before those of the workflow.

    Raises:
        ConfigError: `credit.counterfactual.use` is `default`, and an agent whose actions are replaced has none.
    """
    section = config.credit.counterfactual
    texts = {**workflow.default_actions, **section.texts}
    missing = [agent for agent in section.agents or workflow.agents if agent not in texts]
    if section.use == "default" and missing:
        raise ConfigError(
            f"credit.counterfactual.use=default: the workflow {config.workflow.use} has no default action of "
            f"{', '.join(missing)}. Set credit.counterfactual.texts.{missing[0]}, or name in "
            "credit.counterfactual.agents only those that have one."
        )
    return texts


def check_difference(config: RunConfig, shapers: Iterable[Shaper]) -> None:
    """Raise ConfigError where rewards are made of credits that nobody plays for."""
    if config.credit.counterfactual.use == "none" and any(isinstance(shaper, Difference) for shaper in shapers):
        raise ConfigError(
            "shapers: difference needs counterfactual rollouts, and credit.counterfactual.use is none: set it to "
            "sibling, resample or default"
        )
