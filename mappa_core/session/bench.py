"""A bench on the files of a run that is not going on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from mappa_core.config.schema import RunConfig
from mappa_core.plugins import Registry
from mappa_core.session.kit import limits_of
from mappa_core.tools.bench import ToolBench
from mappa_core.tools.calls import PYTHON

RETRY_AFTER_S = 0.5


@asynccontextmanager
async def open_bench(config: RunConfig, registry: Registry, archive: Path) -> AsyncIterator[ToolBench]:
    """Where programs are run on the files that `archive` keeps, with the run's own tool `python`, which starts with the
    first of them.

    Raises:
        ConfigError, PluginError: the tool cannot be built.
    """
    chosen = {name: section for name, section in config.tools.items() if name == PYTHON}
    tools = {name: registry.build("tools", section.use, section.options) for name, section in chosen.items()}
    limits = {name: limits_of(section) for name, section in chosen.items()}
    retries = {name: section.retries for name, section in chosen.items()}
    try:
        yield ToolBench(tools, limits, retries, wait_s=RETRY_AFTER_S, archive=archive)
    finally:
        for tool in tools.values():
            await tool.close()
