"""The places of a system that any program may read, whatever interpreter it runs on: what is needed, and no more.

None of them holds a secret or what another program wrote. Paths that a system does not have are to be skipped.
"""

from __future__ import annotations

import os
import sys

SYSTEM = (
    # Programs and libraries. Not all of /usr: below /usr/local lie settings too, and whatever else was put there.
    *("/bin", "/sbin", "/lib", "/lib32", "/lib64"),
    *("/usr/bin", "/usr/sbin", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libexec", "/usr/include", "/usr/share"),
    *("/usr/local/bin", "/usr/local/lib", "/usr/local/lib64", "/usr/local/include", "/usr/local/share"),
    # Where systems without /usr/lib keep them.
    *("/nix/store", "/gnu/store"),
    # How to find libraries; on some systems /usr/bin/cc and the BLAS are links that lead through `alternatives`.
    *("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives"),
    # Fonts and time zone. Not passwd and group: they name people.
    *("/etc/fonts", "/etc/localtime"),
)

SETTINGS = (
    # Many libraries expect these to be missing, few to be unreadable: an `openssl.cnf` that may not be opened stops
    # OpenSSL, a `mime.types` stops `mimetypes`.
    *("/etc/ssl/openssl.cnf", "/etc/ssl/certs", "/etc/ca-certificates", "/etc/pki/tls/openssl.cnf"),
    *("/etc/pki/tls/certs", "/etc/pki/ca-trust/extracted", "/etc/crypto-policies"),
    *("/etc/mime.types", "/etc/httpd/mime.types", "/etc/httpd/conf/mime.types", "/etc/apache/mime.types"),
    *("/etc/apache2/mime.types", "/etc/terminfo", "/etc/timezone", "/etc/os-release"),
    # The site of a distribution's own Python lies here.
    *("/etc/python3", f"/etc/python{sys.version_info.major}.{sys.version_info.minor}"),
)
"""For a cage in which what is not allowed is there all the same."""

KERNEL = (
    # Processors and memory, which numeric libraries count and measure. Not /proc as a whole: there the command lines of
    # all processes can be read. Not /proc/net: there are the connections of the machine.
    *("/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/loadavg", "/proc/uptime", "/proc/version"),
    *("/proc/filesystems", "/proc/sys/kernel/osrelease", "/proc/sys/kernel/pid_max", "/proc/sys/vm/overcommit_memory"),
    *("/sys/devices/system/cpu", "/sys/devices/system/node", "/sys/kernel/mm/transparent_hugepage"),
    # The share of processors that a container has. joblib does not expect that it cannot be opened.
    *("/sys/fs/cgroup/cpu.max", "/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "/sys/fs/cgroup/cpu/cpu.cfs_period_us"),
)
"""For a cage that has the machine's own /proc and /sys, and restricts them by path."""

DEVICES = {"/dev/null": True, "/dev/zero": True, "/dev/full": True, "/dev/random": False, "/dev/urandom": False}
"""The devices that a program gets, and whether it may write to them. None of them keeps what is written."""

_PROCESS = (
    *("cmdline", "comm", "environ", "fd", "fdinfo", "io", "limits", "maps", "oom_score", "smaps", "smaps_rollup"),
    *("stat", "statm", "status"),
)


def own_process() -> tuple[str, ...]:
    """What this process may read about itself in the machine's own /proc: not its `net`, `mountinfo` and `cgroup`,
    which are about the machine, and so not `task`, which has them too."""
    return tuple(f"/proc/{os.getpid()}/{name}" for name in _PROCESS)
