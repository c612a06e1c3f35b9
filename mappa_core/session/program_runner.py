"""Runs programs on the files of a run that has ended."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from mappa_core.config.schema import RunConfig
from mappa_core.plugins import Registry
from mappa_core.tools.parse_calls import PYTHON
from mappa_core.tools.scratch import ScratchRunner
from mappa_core.tools.tool_limits import to_tool_limits

_RETRY_AFTER_S = 0.5


@asynccontextmanager
async def open_program_runner(config: RunConfig, registry: Registry, archive: Path) -> AsyncIterator[ScratchRunner]:
    """Open a runner of programs on the files that `archive` keeps, with the run's own tool `python`, which starts with
    the first program.

    Raises:
        ConfigError, PluginError: the tool cannot be built.
    """
    chosen = {name: section for name, section in config.tools.items() if name == PYTHON}
    tools = {name: registry.build("tools", section.use, section.options) for name, section in chosen.items()}
    limits = {name: to_tool_limits(section) for name, section in chosen.items()}
    retries = {name: section.retries for name, section in chosen.items()}
    try:
        yield ScratchRunner(tools, limits, retries, wait_s=_RETRY_AFTER_S, archive=archive)
    finally:
        for tool in tools.values():
            await tool.close()
