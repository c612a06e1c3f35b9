"""Credit of a run: what turns verdicts into experience, and the estimator of its advantages."""

from __future__ import annotations

from mappa_core.config.schema import RunConfig
from mappa_core.credit.build_experience import ExperienceBuilder
from mappa_core.credit.by_agent import combine_estimators
from mappa_core.plugins import Registry
from mappa_core.protocols import Estimator, Workflow
from mappa_core.session.policies import assign_policies, trained_policies


def build_experience_builder(config: RunConfig, registry: Registry, workflow: Workflow) -> ExperienceBuilder:
    """Build what turns the judged trajectories of a run into experience."""
    policies = assign_policies(config, tuple(workflow.agents))
    return ExperienceBuilder(
        reward=config.coach.reward,
        shapers=tuple(registry.build("shapers", one.use, one.options) for one in config.shapers),
        policies=policies,
        trained=trained_policies(config, policies.values()),
        metric=workflow.metric,
    )


def build_estimator(config: RunConfig, registry: Registry) -> Estimator:
    """Build the run's estimator, with the estimators of single agents combined into it."""
    default = registry.build("estimators", config.estimator.use, config.estimator.options)
    by_agent = {
        agent: registry.build("estimators", chosen.use, chosen.options)
        for agent, chosen in config.estimator.by_agent.items()
    }
    return combine_estimators(default, by_agent)
