"""A team whose tools are those of a run's config."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from mappa.rollout.team import Team
from mappa.session import toolset
from mappa.sessions import RunConfig
from mappa.testing import ScriptedSampler, load_plugins
from mappa_core import Sampling, Workflow
from mappa_core.sandbox import to_tool_limits


@pytest.fixture
async def open_tools() -> AsyncIterator[Callable[[RunConfig], Awaitable[Any]]]:
    """Opens the tools of a config; they are closed when the test ends."""
    async with AsyncExitStack() as stack:
        registry = load_plugins(only=("mcp", "sandbox"))
        yield lambda config: toolset.open_tools(config, registry, stack)


@pytest.fixture
def team_with() -> Callable[[Workflow, ScriptedSampler, Any], Team]:
    """The team of a workflow, with opened tools."""

    def build(workflow: Workflow, sampler: ScriptedSampler, opened: Any) -> Team:
        return Team(
            workflow=workflow,
            policy_of=dict.fromkeys(workflow.agents, "scripted"),
            samplers={"scripted": sampler},
            sampling={agent: Sampling() for agent in workflow.agents},
            tools=opened.tools,
            toolboxes=opened.toolboxes,
            limits={name: to_tool_limits(section) for name, section in opened.sections.items()},
            retries=dict.fromkeys(opened.tools, 0),
            coach_of={},
        )

    return build
