"""Tools of a run: builds them, and opens those that run programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

from mappa_core.config.schema import RunConfig, ToolSection
from mappa_core.errors import ConfigError
from mappa_core.plugins import Registry
from mappa_core.protocols import Sandboxed, Tool, Toolbox
from mappa_core.records import Sandbox, ToolLimits
from mappa_core.tools.tool_limits import to_tool_limits


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Toolset:
    """Tools, their sections and sandboxes, by tool name; `toolboxes` lists the tools of a section with several."""

    tools: Mapping[str, Tool]
    sections: Mapping[str, ToolSection]
    toolboxes: Mapping[str, tuple[str, ...]]
    sandboxes: Mapping[str, Sandbox]

    @property
    def limits(self) -> Mapping[str, ToolLimits]:
        return {name: to_tool_limits(section) for name, section in self.sections.items()}

    @property
    def retries(self) -> Mapping[str, int]:
        return {name: section.retries for name, section in self.sections.items()}


async def build_tools(config: RunConfig, registry: Registry, stack: AsyncExitStack) -> Toolset:
    """Build the tools of a config, connect toolboxes, and register all on `stack` for closing. No sandbox is opened.
    Raises ConfigError or PluginError if a tool cannot be built, or two have the same name."""
    tools: dict[str, Tool] = {}
    sections: dict[str, ToolSection] = {}
    toolboxes: dict[str, tuple[str, ...]] = {}
    for name, section in config.tools.items():
        built: Tool | Toolbox = registry.build("tools", section.use, section.options)
        # Before it connects, which may fail half-way.
        stack.push_async_callback(built.close)
        named_tools: Sequence[tuple[str, Tool]]
        if isinstance(built, Toolbox):
            named_tools = [(tool.spec.name, tool) for tool in await built.connect()]
            toolboxes[name] = tuple(called for called, _ in named_tools)
        else:
            named_tools = [(name, built)]
        for called, tool in named_tools:
            if called in tools:
                raise ConfigError(
                    f"tools.{name}: there is a tool {called!r} already; give those of a server names of their own with "
                    f"tools.{name}.options.prefix"
                )
            tools[called], sections[called] = tool, section
    return Toolset(tools=tools, sections=sections, toolboxes=toolboxes, sandboxes={})


async def open_tools(config: RunConfig, registry: Registry, stack: AsyncExitStack) -> Toolset:
    """Build the tools and open those that run programs, each once, however many names it has."""
    toolset = await build_tools(config, registry, stack)
    sandboxes: dict[str, Sandbox] = {}
    opened: dict[int, Sandbox] = {}
    for name, tool in toolset.tools.items():
        if isinstance(tool, Sandboxed):
            if id(tool) not in opened:
                opened[id(tool)] = await tool.open()
            sandboxes[name] = opened[id(tool)]
    return replace(toolset, sandboxes=sandboxes)
