"""How long the actions of a team are expected to be, by which an engine plans its memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mappa.session.policies import assign_policies
from mappa_core.config.schema import RunConfig
from mappa_core.protocols import PolicySpec, Workflow
from mappa_core.records import Task

CHARACTERS_PER_TOKEN = 4
"""Of English prose, with the tokenizers of current models."""

ActionTokens = Mapping[str, tuple[int, int]]
"""Tokens of the prompt and of the action, by agent."""


def expect_actions(config: RunConfig, workflow: Workflow, tasks: Sequence[Task]) -> ActionTokens:
    """Estimate the longest action of each agent: as long as it may be, after the agent's own instructions, the longest
    task, and what the agents before it in the workflow's order may write."""
    task = max((len(task.prompt) for task in tasks), default=0)
    expected, before = dict[str, tuple[int, int]](), 0
    for agent in workflow.agents:
        own = config.agents.get(agent)
        longest = config.sampling.max_tokens if own is None or own.max_tokens is None else own.max_tokens
        instructions = (own.prompt if own is not None else None) or workflow.prompts.get(agent, "")
        expected[agent] = (-(-(len(instructions) + task) // CHARACTERS_PER_TOKEN) + before, longest)
        before += longest
    return expected


def add_expected_actions(
    specs: Sequence[PolicySpec], config: RunConfig, workflow: Workflow, expected: ActionTokens
) -> tuple[PolicySpec, ...]:
    """Return the specs with the actions that are expected of the agents that play by them: as many as the workflow
    allows, or one of each agent where it sets no bound."""
    policy_of, turns = assign_policies(config, tuple(workflow.agents)), workflow.max_turns
    return tuple(
        replace(
            spec,
            actions=tuple(
                expected[agent]
                for agent, policy in policy_of.items()
                if policy == spec.name and agent in expected
                for _ in range(turns.get(agent, 1))
            ),
        )
        for spec in specs
    )
