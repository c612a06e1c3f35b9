"""Credit of a run: what turns verdicts into experience, the estimator of its advantages, and default actions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from mappa.session.policies import assign_policies, trained_policies
from mappa_core.config.schema import RunConfig, Use
from mappa_core.credit.build_experience import ExperienceBuilder
from mappa_core.credit.by_agent import combine_estimators
from mappa_core.credit.shapers import DifferenceShaper, MetricOptions
from mappa_core.errors import ConfigError
from mappa_core.plugins import Registry
from mappa_core.protocols import Estimator, Shaper, Workflow


def build_experience_builder(config: RunConfig, registry: Registry, workflow: Workflow) -> ExperienceBuilder:
    """Build what turns the judged trajectories of a run into experience."""
    policies = assign_policies(config, tuple(workflow.agents))
    return ExperienceBuilder(
        reward=config.coach.reward,
        shapers=tuple(_build_shaper(chosen, registry, workflow) for chosen in config.shapers),
        policies=policies,
        trained=trained_policies(config, policies.values()),
        metric=workflow.metric,
        overflow=config.credit.overflow,
    )


def _build_shaper(chosen: Use, registry: Registry, workflow: Workflow) -> Shaper:
    """Build a shaper; one that reads an outcome, and of which no metric is set, reads the workflow's."""
    options = chosen.options
    if isinstance(options, MetricOptions) and options.metric is None:
        options = replace(options, metric=workflow.metric)
    shaper: Shaper = registry.build("shapers", chosen.use, options)
    return shaper


def build_estimator(config: RunConfig, registry: Registry) -> Estimator:
    """Build the run's estimator, with the estimators of single agents combined into it."""
    section = config.estimator
    default = registry.build("estimators", section.use, section.options)
    by_agent = {
        agent: registry.build("estimators", chosen.use, chosen.options) for agent, chosen in section.by_agent.items()
    }
    return combine_estimators(default, by_agent)


def resolve_default_actions(config: RunConfig, workflow: Workflow) -> Mapping[str, str]:
    """Default action per agent; those of the config override those of the workflow. Raises ConfigError if
    `credit.counterfactual.use` is `default`, and an agent whose actions are replaced has none."""
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


def check_dynamic_sampling(config: RunConfig, straggler_share: float) -> None:
    """Raise ConfigError if `train.dynamic_sampling` is on where an iteration has no rewards to compare, or not all."""
    if not config.train.dynamic_sampling:
        return
    counterfactual = config.credit.counterfactual.use
    if config.train.samples == 1:
        why = "train.samples=1 leaves nothing to compare with; set it to 2 or more"
    elif counterfactual != "none":
        why = (
            f"tasks are replaced by their rewards, and with credit.counterfactual.use={counterfactual} these depend on "
            "rollouts that are played once all tasks of an iteration are chosen; set credit.counterfactual.use=none"
        )
    elif straggler_share > 0:
        why = (
            "tasks are replaced when all their samples have rewards, and "
            f"engine.options.straggler_share={straggler_share:g} leaves tasks unfinished; set it to 0"
        )
    else:
        return
    raise ConfigError(f"train.dynamic_sampling={config.train.dynamic_sampling}: {why}")
