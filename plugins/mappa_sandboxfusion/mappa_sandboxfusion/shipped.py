"""What is sent to servers to run there."""

from __future__ import annotations

import io
import zipfile
from functools import cache
from importlib.resources import files

from mappa_core import program_runner

_PACKAGE = "mappa_sandboxfusion/remote"
_FOLDER = files("mappa_sandboxfusion") / "remote"
REPORT = (_FOLDER / "report.py").read_text()
COMPILE = (_FOLDER / "compile.py").read_text()
RUN = """import sys
sys.path.insert(0, "archive.zip")
from mappa_sandboxfusion.remote.run import main
main()
"""
NOTHING = "pass\n"
"""A program for calls that only fetch files."""


@cache
def archive() -> bytes:
    """The runner of core, and beside it what `RUN` starts, as a zip archive of texts."""
    content = io.BytesIO(program_runner())
    with zipfile.ZipFile(content, "a", zipfile.ZIP_DEFLATED) as zipped:
        zipped.writestr("mappa_sandboxfusion/__init__.py", "")
        for name in ("__init__", "run", "incoming", "program", "contents"):
            zipped.writestr(f"{_PACKAGE}/{name}.py", (_FOLDER / f"{name}.py").read_text())
    return content.getvalue()
