"""Options of the tool `python`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Backend = Literal["auto", "bubblewrap", "landlock", "none"]


@dataclass
class PythonOptions:
    workers: int | None = None
    """Programs that run at once; None: as many as there are CPUs, at least 2. Others wait in order. While programs run,
    as many are prepared."""
    preload: list[str] = field(default_factory=list)
    """Modules that are imported once, before the first program, so that programs that import them start at once. A
    module whose name ends in `?` may be missing."""
    warm_up: str | None = None
    """A program that is run once after that, without a sandbox and in a folder of its own, so that libraries have done
    what they do on first use: a file, or `package:NAME/PATH` for one inside an installed package."""
    hidden_paths: list[str] = field(default_factory=list)
    """Files and folders that programs cannot read, unlike the rest of the interpreter's packages: absolute paths, or
    paths inside the folder of installed packages (`sklearn/datasets/data`). A path that ends in `?` may be missing."""
    sandbox: Backend = "auto"
    """Backend of the sandbox: `auto` is the first that works, `none` needs allow_unsafe."""
    allow_unsafe: bool = False
    """Run programs without a sandbox if none works: they can then read your files and keys, and use your network."""
