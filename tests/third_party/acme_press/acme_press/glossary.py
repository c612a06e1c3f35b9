"""The tool: looks up the meaning of a word."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mappa_core import NoOptions, ToolLimits, ToolResult, ToolSpec, Workspace

MEANINGS = {
    "tide": "the sea that comes and goes",
    "lemma": "a small proved statement",
    "gable": "the end wall under a roof",
    "ember": "what glows when a fire is low",
    "delta": "land at the mouth of a river",
    "fugue": "a tune that chases itself",
}


class Glossary:
    """Looks one word up, and leaves a note of it in the workspace."""

    spec = ToolSpec(
        name="glossary",
        description="Say what a word means.",
        schema={"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
    )

    def __init__(self, options: NoOptions) -> None:
        pass

    async def call(self, arguments: Mapping[str, Any], workspace: Workspace, limits: ToolLimits) -> ToolResult:
        meaning = MEANINGS.get(arguments["word"])
        if meaning is None:
            return ToolResult(tool=self.spec.name, status="error", stderr="there is no such word here")
        (workspace.path / "note.txt").write_text(meaning, encoding="utf-8")
        return ToolResult(tool=self.spec.name, status="ok", stdout=meaning, files=workspace.changes())

    async def close(self) -> None:
        """There is nothing to release."""
