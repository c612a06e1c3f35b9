"""The programs and the archive that are sent to servers."""

from __future__ import annotations

import io
import zipfile
from functools import cache
from importlib.resources import files

from mappa_sandbox import program_runner

_PACKAGE = "mappa_sandboxfusion/remote"
_FOLDER = files("mappa_sandboxfusion") / "remote"
REPORT_PROGRAM = (_FOLDER / "report.py").read_text()
COMPILE_PROGRAM = (_FOLDER / "compile.py").read_text()
RUN_PROGRAM = """import sys
sys.path.insert(0, "archive.zip")
from mappa_sandboxfusion.remote.run import main
main()
"""
EMPTY_PROGRAM = "pass\n"
"""Program of calls that only fetch files."""


@cache
def build_archive() -> bytes:
    """Build a zip archive with the sources of core's runner and of the modules that `RUN_PROGRAM` imports."""
    content = io.BytesIO(program_runner())
    with zipfile.ZipFile(content, "a", zipfile.ZIP_DEFLATED) as zipped:
        zipped.writestr("mappa_sandboxfusion/__init__.py", "")
        for name in ("__init__", "run", "apply_files", "program", "contents"):
            zipped.writestr(f"{_PACKAGE}/{name}.py", (_FOLDER / f"{name}.py").read_text())
    return content.getvalue()
