"""Limits of a tool's calls, from its section of the config."""

from __future__ import annotations

from typing import Any

from mappa_core.config.schema import ToolSection
from mappa_core.records import ToolLimits


def to_tool_limits(section: ToolSection) -> ToolLimits:
    """Convert the limits of a tool section to the record that its calls get."""
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
