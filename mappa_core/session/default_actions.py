"""Config checks of counterfactual credit: default actions and the difference shaper."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mappa_core.config.schema import RunConfig
from mappa_core.credit.shapers import DifferenceShaper
from mappa_core.errors import ConfigError
from mappa_core.protocols import Shaper, Workflow


def resolve_default_actions(config: RunConfig, workflow: Workflow) -> Mapping[str, str]:
    """Default action per agent; those of the config override those of the workflow.

    Raises:
        ConfigError: `credit.counterfactual.use` is `default`, and an agent whose actions are replaced has none.
    """
    section = config.credit.counterfactual
    default_actions = {**workflow.default_actions, **section.default_actions}
    missing = [agent for agent in section.agents or workflow.agents if agent not in default_actions]
    if section.use == "default" and missing:
        raise ConfigError(
            f"credit.counterfactual.use=default: the workflow {config.workflow.use} has no default action of "
            f"{', '.join(missing)}. Set credit.counterfactual.default_actions.{missing[0]}, or name in "
            "credit.counterfactual.agents only those that have one."
        )
    return default_actions


def check_difference_shaper(config: RunConfig, shapers: Iterable[Shaper]) -> None:
    """Raise ConfigError if the difference shaper is used without counterfactual rollouts."""
    if config.credit.counterfactual.use == "none" and any(isinstance(shaper, DifferenceShaper) for shaper in shapers):
        raise ConfigError(
            "shapers: difference needs counterfactual rollouts, and credit.counterfactual.use is none: set it to "
            "sibling, resample or default"
        )
