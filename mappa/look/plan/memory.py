"""The memory of a run: what its engine expects, and what a recorded run took."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from mappa.look.plan.changed_settings import affects_memory
from mappa.look.plan.history import RunHistory
from mappa.session.expected_actions import ActionTokens, add_expected_actions, expect_actions
from mappa.session.policies import build_policy_specs
from mappa_core import Workflow
from mappa_core.config.schema import RunConfig
from mappa_core.engine import Engine, EnginePlan, Machine
from mappa_core.plugins import Registry


async def plan_memory(
    config: RunConfig,
    registry: Registry,
    policies: Sequence[str],
    machines: Sequence[Machine],
    *,
    learning: bool,
    history: RunHistory | None,
    changed: Sequence[str],
) -> EnginePlan:
    """Ask the engine for the memory of the policies of these names, on `machines` or, where there are none, on this
    one; there a recorded run says what it took, whose settings are `changed` since. Raises ConfigError or PluginError
    if the engine or the workflow cannot be built, or the policies do not fit."""
    if not policies:
        return EnginePlan(unknown="every policy is behind an API: there are no weights here")
    workflow: Workflow = registry.build("workflows", config.workflow.use, config.workflow.options)
    engine: Engine = registry.build("engines", config.engine.use, config.engine.options)
    try:
        if not hasattr(engine, "plan"):  # one that does not derive from core's class
            return EnginePlan(unknown=f"the engine {config.engine.use} makes no plan")
        expected = expect_actions(config, registry, workflow) if history is None else _measured_actions(history)
        specs = add_expected_actions(build_policy_specs(config, policies), config, tuple(workflow.agents), expected)
        memory = engine.plan(
            specs, config.train if learning else None, rows=config.sampling.concurrency, machines=machines
        )
    finally:
        await engine.close()
        await workflow.close()
    if history is None or memory.unknown is not None or machines:
        return memory
    return _with_measured(memory, history, list(filter(affects_memory, changed)))


def _measured_actions(history: RunHistory) -> ActionTokens:
    """Return the actions of each agent in a trajectory of the recorded run, their mean number, rounded up, and as long
    as the longest."""
    split = history.split_or_other("train")
    return {
        agent: (totals.longest,) * math.ceil(totals.actions / split.trajectories)
        for agent, totals in split.agents.items()
    }


def _with_measured(memory: EnginePlan, history: RunHistory, differing: Sequence[str]) -> EnginePlan:
    """Add what the recorded run took at its peak, and of which settings that was."""
    if history.peak_memory is None:
        return memory
    took = f"{history.folder} took {history.peak_memory / 1e9:.1f} GB at its peak"
    same = f", with other settings ({', '.join(differing)})" if differing else ", with these settings"
    details = {**memory.details, "measured": history.peak_memory}
    return replace(memory, lines=(*memory.lines, took + same), details=details)
