"""Options of the tool `python`."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class PythonOptions:
    workers: int | None = None
    """Programs that run at once; None: as many as there are CPUs, at least 2. Further ones wait in order."""
    preload: list[str] = field(default_factory=list)
    """Modules that are imported once, before the first program; programs that import them then start at once. One whose
    name ends in `?` need not be there."""
    hide: list[str] = field(default_factory=list)
    """Files and folders that programs cannot read although the interpreter's packages are: absolute paths, or paths
    inside the folder of installed packages (`sklearn/datasets/data`). One that ends in `?` need not be there."""
    cage: str = "auto"
    """auto (the first that works) | bubblewrap | landlock | seatbelt | none (only with allow_unsafe)"""
    allow_unsafe: bool = False
    """Run programs without a cage where none works: they can then read your files and keys, and use your network."""
