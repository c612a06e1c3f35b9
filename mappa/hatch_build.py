"""Adds the pages that `mappa docs` shows to what is built: in a checkout they lie outside the package."""

from __future__ import annotations

import runpy
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ManualHook(BuildHookInterface[Any]):
    """Writes the pages as one file into an sdist, and into a wheel that is not built from an sdist, which has it."""

    _folder: tempfile.TemporaryDirectory[str] | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before a target is built. Raises ValueError where there are no pages: `mappa docs` would be empty."""
        package = Path(self.root)
        if version == "editable" or (package / "look/manual.md").is_file():
            return
        manual = runpy.run_path(str(package / "look/manual.py"))
        self._folder = tempfile.TemporaryDirectory(prefix="mappa-manual-")
        file = Path(self._folder.name) / "manual.md"
        file.write_text(manual["join_pages"](manual["locate_pages"](package.parent)), encoding="utf-8")
        build_data["force_include"][str(file)] = "look/manual.md"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Called when the target is built."""
        if self._folder is not None:
            self._folder.cleanup()
