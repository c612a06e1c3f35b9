"""How long the actions of a team are expected to be, by which an engine plans its memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain

from mappa.session.policies import assign_policies
from mappa_core.config.schema import RunConfig
from mappa_core.errors import InputError
from mappa_core.plugins import Registry
from mappa_core.protocols import PolicySpec, TaskSource, Workflow
from mappa_core.records import Task

CHARACTERS_PER_TOKEN = 4
"""Of English prose, with the tokenizers of current models."""

ActionTokens = Mapping[str, tuple[tuple[int, int], ...]]
"""Tokens of prompt and action of each action in a trajectory, by agent."""


def expect_actions(config: RunConfig, registry: Registry, workflow: Workflow) -> ActionTokens:
    """Estimate the actions of each agent as `expect_actions_on` does; nothing where the tasks cannot be read."""
    try:
        source: TaskSource = registry.build("tasks", config.tasks.use, config.tasks.options)
        tasks = source.load("train")
    except InputError:
        return {}
    return expect_actions_on(tasks, config, workflow)


def expect_actions_on(tasks: Sequence[Task], config: RunConfig, workflow: Workflow) -> ActionTokens:
    """Estimate the actions of each agent: as many and as long as they may be, each after the agent's own instructions,
    the longest of the tasks, and what the agents before it in the workflow's order may write. Nothing without tasks,
    or where the workflow does not bound its turns."""
    turns = workflow.max_turns
    if not tasks or not workflow.agents.keys() <= turns.keys():
        return {}
    task = max(len(task.prompt) for task in tasks)
    expected, before = dict[str, tuple[tuple[int, int], ...]](), 0
    for agent in workflow.agents:
        own = config.agents.get(agent)
        longest = config.sampling.max_tokens if own is None or own.max_tokens is None else own.max_tokens
        instructions = (None if own is None else own.prompt) or workflow.prompts.get(agent, "")
        prompt = -(-(len(instructions) + task) // CHARACTERS_PER_TOKEN) + before
        expected[agent] = ((prompt, longest),) * turns[agent]
        before += longest
    return expected


def add_expected_actions(
    specs: Sequence[PolicySpec], config: RunConfig, agents: Sequence[str], expected: ActionTokens
) -> tuple[PolicySpec, ...]:
    """Return the specs with the actions of the agents that play by them; without any where those of an agent are not
    known."""
    policy_of = assign_policies(config, agents)
    if not policy_of.keys() <= expected.keys():
        return tuple(specs)
    return tuple(
        replace(
            spec, actions=tuple(chain(*(expected[agent] for agent, policy in policy_of.items() if policy == spec.name)))
        )
        for spec in specs
    )
