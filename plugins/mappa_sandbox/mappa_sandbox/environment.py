"""Environment variables of programs of agents, and of the processes that start them."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

PROGRAM_ENVIRONMENT: Mapping[str, str] = {
    "USER": "agent",
    "LOGNAME": "agent",
    "LANG": "C.UTF-8",
    # No bytecode is written, as it would count as a file of the agent.
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONNOUSERSITE": "1",
    "PYTHONUTF8": "1",
    # One thread each: more would reserve address space, which is limited, and results would depend on the machine.
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1"),
    # Its default pool reserves a gigabyte of address space at once, and fails where there is less. The thread of its
    # allocator would exist when programs are forked.
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}
"""Environment variables of programs beside PATH, HOME and TMPDIR, wherever they run."""


def clean_environment(backend: str, home: str) -> dict[str, str]:
    """Environment variables of programs; HOME and TMPDIR are replaced per program.

    Nothing is taken from the driver's environment."""
    folders = [str(Path(sys.executable).parent), "/usr/local/bin", "/usr/bin", "/bin"]
    # Without /dev/shm joblib must be configured before its import, or it fails when it starts a process.
    serial = {"JOBLIB_MULTIPROCESSING": "0"} if backend == "landlock" else {}
    return {
        "PATH": os.pathsep.join(folders),
        "HOME": home,
        "TMPDIR": home,
        **PROGRAM_ENVIRONMENT,
        **serial,
    }


def launch_environment() -> dict[str, str]:
    """Environment variables by which a launcher finds the services of this user."""
    names = ("PATH", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS")
    return {name: os.environ[name] for name in names if name in os.environ}
