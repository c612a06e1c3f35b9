"""Options of the tool `python`."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class PythonOptions:
    workers: int | None = None
    """Programs that run at once; None: as many as there are CPUs, at least 2. Others wait in order."""
    preload: list[str] = field(default_factory=list)
    """Modules that are imported once, before the first program, so that programs that import them start at once. A
    module whose name ends in `?` may be missing."""
    hide: list[str] = field(default_factory=list)
    """Files and folders that programs cannot read, unlike the rest of the interpreter's packages: absolute paths, or
    paths inside the folder of installed packages (`sklearn/datasets/data`). A path that ends in `?` may be missing."""
    cage: str = "auto"
    """auto (the first that works) | bubblewrap | landlock | seatbelt | none (only with allow_unsafe)"""
    allow_unsafe: bool = False
    """Run programs without a sandbox if none works: they can then read your files and keys, and use your network."""
