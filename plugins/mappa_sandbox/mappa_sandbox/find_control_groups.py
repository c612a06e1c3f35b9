"""Find control groups that hold limits of programs, by trying them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import lru_cache

from mappa_sandbox.environment import launch_environment
from mappa_sandbox.fork_server_process import PACKAGE_ROOTS
from mappa_sandbox.isolation.control_groups import CPU, MEMORY, PROCESSES

TRIAL = """
import json, sys
sys.path[:0] = sys.argv[1:3]
from mappa_sandbox.isolation.control_groups import try_limits
try:
    print(json.dumps({"held": try_limits()}))
except OSError as error:
    print(json.dumps({"held": [], "reason": str(error)}))
"""
TRIAL_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class ControlGroups:
    """The limits that control groups enforce here, and the command by which a fork server gets groups of its own; where
    they enforce none, the `reason`."""

    held: tuple[str, ...]
    launcher: tuple[str, ...] = ()
    reason: str = ""


@lru_cache(maxsize=1)
def find_control_groups() -> ControlGroups:
    """Try the group of this process, and a scope of systemd's; return the one that holds most. The result is kept."""
    found = [_try_launcher(launcher) for launcher in ((), *_systemd_launchers())]
    best = max(found, key=lambda groups: len(groups.held))
    return best if best.held else ControlGroups((), reason="; ".join(groups.reason for groups in found))


def describe_limits(groups: ControlGroups, *, holds_files: bool) -> str:
    """Describe which limits of all processes together the kernel enforces, and which are polled. `holds_files` tells
    whether it enforces those of files, without control groups."""
    names = {MEMORY: "memory", PROCESSES: "processes", CPU: "CPU time"}
    watched = [name for limit, name in names.items() if limit not in groups.held]
    by_group = [names[limit] for limit in groups.held]
    why = f" (no control groups: {groups.reason})" if groups.reason else ""
    parts = [
        f"control groups enforce {', '.join(by_group)}" if by_group else "",
        "a file system in memory enforces files" if holds_files else "",
        f"polled: {', '.join(watched if holds_files else [*watched, 'files']) or 'none'}{why}",
    ]
    return "; ".join(filter(None, parts))


def _systemd_launchers() -> list[tuple[str, ...]]:
    program = shutil.which("systemd-run")
    if program is None:
        return []
    user = () if os.geteuid() == 0 else ("--user",)
    return [(program, *user, "--scope", "--quiet", "--collect", "--property=Delegate=yes", "--")]


def _try_launcher(launcher: tuple[str, ...]) -> ControlGroups:
    command = [*launcher, sys.executable, "-P", "-c", TRIAL, *map(str, PACKAGE_ROOTS)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TRIAL_TIMEOUT_S, env=launch_environment(), check=True
        )
        said = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        stderr = getattr(error, "stderr", None) or str(error)
        return ControlGroups(
            (), reason=f"{launcher[0] if launcher else 'own group'}: {stderr.strip().splitlines()[-1]}"
        )
    return ControlGroups(tuple(said["held"]), launcher, said.get("reason", ""))
