"""The tools of a run: built, and opened where they have to be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from mappa_core.config.schema import RunConfig, ToolSection
from mappa_core.errors import ConfigError
from mappa_core.plugins import Registry
from mappa_core.protocols import Sandboxed, Tool, Toolbox
from mappa_core.records import Sandbox, ToolLimits


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Kit:
    """Tools, the sections of the config that they come from, and where those that run programs run them, all by the
    name of the tool; `boxes` names the tools of a section that brings several."""

    tools: Mapping[str, Tool]
    sections: Mapping[str, ToolSection]
    boxes: Mapping[str, tuple[str, ...]]
    sandboxes: Mapping[str, Sandbox]


async def build_tools(config: RunConfig, registry: Registry, stack: AsyncExitStack) -> Kit:
    """The tools of a config; what has to be closed goes onto `stack`. Boxes are connected, and programs are not run.

    Raises:
        ConfigError, PluginError: a tool cannot be built, or two have one name.
    """
    tools: dict[str, Tool] = {}
    sections: dict[str, ToolSection] = {}
    boxes: dict[str, tuple[str, ...]] = {}
    for name, section in config.tools.items():
        built: Tool | Toolbox = registry.build("tools", section.use, section.options)
        stack.push_async_callback(built.close)
        found: Sequence[tuple[str, Tool]]
        if isinstance(built, Toolbox):
            found = [(tool.spec.name, tool) for tool in await built.connect()]
            boxes[name] = tuple(called for called, _ in found)
        else:
            found = [(name, built)]
        for called, tool in found:
            if called in tools:
                raise ConfigError(
                    f"tools.{name}: there is a tool {called!r} already; give those of a server names of their own with "
                    f"tools.{name}.options.prefix"
                )
            tools[called], sections[called] = tool, section
    return Kit(tools=tools, sections=sections, boxes=boxes, sandboxes={})


async def open_tools(config: RunConfig, registry: Registry, stack: AsyncExitStack) -> Kit:
    """As `build_tools`, and those that run programs have run one. Each is opened once, however many names it has."""
    kit = await build_tools(config, registry, stack)
    opened = {
        identity: await tool.open()
        for identity, tool in {id(tool): tool for tool in kit.tools.values()}.items()
        if isinstance(tool, Sandboxed)
    }
    sandboxes = {name: opened[id(tool)] for name, tool in kit.tools.items() if id(tool) in opened}
    return Kit(tools=kit.tools, sections=kit.sections, boxes=kit.boxes, sandboxes=sandboxes)


def limits_of(section: ToolSection) -> ToolLimits:
    """The limits of a tool as the record that its calls get."""
    limits: Any = section.limits
    return ToolLimits(
        wall_s=limits.wall_s,
        cpu_s=limits.cpu_s,
        memory_bytes=limits.memory_mb << 20,
        file_bytes=limits.file_mb << 20,
        output_bytes=limits.output_kb << 10,
        processes=limits.processes,
        workspace_bytes=limits.workspace_mb << 20,
        workspace_files=limits.workspace_files,
    )
