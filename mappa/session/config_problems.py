"""Problems of a config that show before a run starts: what cannot start, and what has no effect."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from mappa.config.compose import ComposedConfig, iter_choices
from mappa.session.credit import build_estimator
from mappa.session.expected_actions import add_expected_actions, expect_actions
from mappa.session.policies import (
    assign_policies,
    build_policy_specs,
    check_scored,
    find_teachers,
    policies_with_weights,
)
from mappa_core.config.agent_names import check_agent_names
from mappa_core.config.layers import DEFAULT_ORIGIN
from mappa_core.config.schema import RunConfig
from mappa_core.errors import InputError
from mappa_core.plugins import Registry
from mappa_core.protocols import Split, TaskSource, Workflow


def find_problems(composed: ComposedConfig, registry: Registry) -> list[str]:
    """Try every offer of a config, its tasks and its engine's plan apart; return each reason why no run can start."""
    config, problems = composed.config, list[str]()
    for key, kind, choice in iter_choices(config):
        # A tool is tried when it is opened. A loss imports the libraries of its engine, and lacks nothing else.
        if kind in ("tools", "losses"):
            continue
        try:
            offer = registry.build(kind, str(choice.use), choice.options)
            if kind == "workflows":
                check_agent_names(str(choice.use), offer.agents)
            elif kind == "tasks":
                problems += _find_task_problems(config, offer)
            elif kind == "engines" and hasattr(offer, "plan"):
                problems += _find_engine_problems(config, registry, offer)
        except InputError as error:
            problems.append(composed.tell_origins(f"{key}: {error}"))
    return problems


def _find_task_problems(config: RunConfig, source: TaskSource) -> Iterator[str]:
    splits: tuple[Split, ...] = ("train", config.eval.split)
    for split in splits:
        if not source.load(split):
            yield f"tasks.use={config.tasks.use}: there are no {split} tasks; look at tasks.options"


def _find_engine_problems(config: RunConfig, registry: Registry, engine: Any) -> Sequence[str]:
    workflow: Workflow = registry.build("workflows", config.workflow.use, config.workflow.options)
    agents = tuple(workflow.agents)
    teachers = find_teachers(config, agents, build_estimator(config, registry))
    specs = build_policy_specs(config, (*policies_with_weights(config, agents), *teachers))
    if not specs:
        return ()
    specs = add_expected_actions(specs, config, agents, expect_actions(config, registry, workflow))
    plan = engine.plan(specs, config.train, rows=config.sampling.concurrency, machines=())
    check_scored(engine, config, [spec for spec in specs if spec.name in teachers])
    problems: Sequence[str] = plan.details.get("problems", ())
    return problems


def overridden_settings(composed: ComposedConfig, agents: Sequence[str], loaded: Iterable[str]) -> Iterator[str]:
    """Describe settings that do not have the effect that they seem to have: those of the user that no agent follows, as
    each has its own; policies that nothing uses, neither an agent nor one that is `loaded`; advantages normalised over
    a policy that agents share; shapers before one that replaces every reward; a warm-up that the run does not end."""
    config = composed.config
    policy_of = assign_policies(config, agents)
    used = {"default", *policy_of.values(), *loaded}
    if config.prompts is not None:
        used.add(config.prompts.policy)
    for unused in sorted(config.policies.keys() - used):
        yield f"policies.{unused} has no effect: agents play by {', '.join(dict.fromkeys(policy_of.values()))}"
    shared = [policy for policy, count in Counter(policy_of.values()).items() if count > 1]
    if shared and getattr(config.estimator.options, "normalize", None) == "policy":
        yield (
            f"estimator.options.normalize=policy: agents share the policy {shared[0]}, so that a coach that likes one "
            "of them moves the advantages of the others; normalize=agent keeps them apart"
        )
    yield from _overridden_shapers(config)
    yield from _endless_warmup(composed)
    for place, _, choice in iter_choices(config):
        if getattr(choice.options, "batch_api", None) is not None:
            yield f"{place}.options.batch_api: each of {config.train.iterations} iterations waits for batches"
    for name in ("max_tokens", "temperature"):
        common_origin = composed.origins.get(f"sampling.{name}", "")
        own_origin = composed.origins.get(f"agents.{agents[0]}.{name}", "")
        # Those of a recipe stand beside its agents' own on purpose.
        is_set_by_user = not common_origin.startswith((DEFAULT_ORIGIN, "recipe "))
        own_values = [getattr(config.agents.get(agent), name, None) for agent in agents]
        if is_set_by_user and None not in own_values:
            yield (
                f"sampling.{name} ({common_origin}) has no effect: every agent has an agents.AGENT.{name} of its own "
                f"({own_origin})"
            )


def _endless_warmup(composed: ComposedConfig) -> Iterator[str]:
    train = composed.config.train
    if train.warmup_iterations > train.iterations:
        reached = train.learning_rate * train.iterations / train.warmup_iterations
        yield composed.tell_origins(
            f"train.warmup_iterations={train.warmup_iterations} is more than train.iterations={train.iterations}: the "
            f"learning rate only grows, to {reached:.2g} in place of {train.learning_rate:.2g}"
        )


def _overridden_shapers(config: RunConfig) -> Iterator[str]:
    before: list[str] = []
    for shaper in config.shapers:
        replaces_rewards = shaper.use == "outcome"
        if shaper.use == "difference":
            replaces_rewards = shaper.options.process_weight == 0
        if before and replaces_rewards:
            yield (
                f"shapers: {shaper.use} replaces every reward, so that {', '.join(before)} before it has no effect; "
                f"put it behind {shaper.use}"
            )
        before.append(str(shaper.use))
