import os
import subprocess
import sys
from pathlib import Path

import pytest

from mappa_sandbox.isolation import kernel, landlock, system_paths

PRIVATE = [
    "/etc/shadow", "/etc/passwd", "/etc/ssl/private/key.pem", "/etc/machine-id", "/root/.ssh/id", "/home/u/.netrc",
    "/run/secrets/key", "/run/docker.sock", "/var/lib/x", "/tmp/x", "/dev/shm/x", "/proc/1/cmdline", "/proc/net/tcp",
    "/proc/kcore", "/sys/kernel/debug", "/sys/fs/cgroup/memory", "/usr/local/etc/key", "/opt/x", "/srv/x", "/mnt/x",
]  # fmt: skip


@pytest.mark.parametrize("path", PRIVATE)
def test_no_system_path_holds_private_files(path):
    assert [
        place
        for place in (*system_paths.SYSTEM_PATHS, *system_paths.SETTINGS_PATHS, *system_paths.KERNEL_PATHS)
        if Path(path).is_relative_to(place)
    ] == []


def test_system_paths_are_absolute_normalised_and_unique():
    every = (
        *system_paths.SYSTEM_PATHS,
        *system_paths.SETTINGS_PATHS,
        *system_paths.KERNEL_PATHS,
        *system_paths.DEVICES,
    )
    assert [path for path in every if os.path.normpath(path) != path or not path.startswith("/")] == []
    assert len(every) == len(set(every))


TOUR = """
import ctypes.util, mimetypes, multiprocessing, platform, ssl, subprocess, time, zoneinfo
assert mimetypes.guess_type("a.html")[0] == "text/html"
ssl.create_default_context()
zoneinfo.ZoneInfo("UTC")
time.tzset()
platform.platform()
multiprocessing.cpu_count()
subprocess.run(["ls", "-l", "/usr/bin"], stdout=subprocess.DEVNULL, check=True)
subprocess.run("sort | uniq -c", shell=True, input=b"b\\na\\n", stdout=subprocess.DEVNULL, check=True)
assert ctypes.util.find_library("c")
print("done")
"""


@pytest.mark.skipif(landlock.abi_version() < 3, reason="needs Landlock to see what is missing")
def test_system_paths_are_enough_for_the_standard_library(in_child):
    def child():
        kernel.no_new_privileges()
        readable = (
            *system_paths.SYSTEM_PATHS,
            *system_paths.SETTINGS_PATHS,
            *system_paths.KERNEL_PATHS,
            sys.prefix,
            sys.base_prefix,
        )
        landlock.restrict(writable=[], readable=readable, hidden=[])
        done = subprocess.run(
            [sys.executable, "-c", TOUR], capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"}
        )
        return done.stdout, done.stderr

    assert in_child(child) == ("done\n", "")


def test_own_process_paths_are_those_of_this_process():
    assert f"/proc/{os.getpid()}/status" in system_paths.own_process_paths()
    assert not [
        path
        for path in system_paths.own_process_paths()
        if path.rpartition("/")[2] in ("net", "task", "mem", "mountinfo")
    ]
