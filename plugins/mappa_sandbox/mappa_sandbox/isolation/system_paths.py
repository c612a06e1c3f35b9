"""System paths that every program may read, whatever its interpreter: only those that are needed.

None of them holds secrets or output of other programs. Callers skip paths that a system does not have.
"""

from __future__ import annotations

import os
import sys

SYSTEM_PATHS = (
    # Programs and libraries. Not all of /usr: /usr/local also holds settings, and whatever else was put there.
    *("/bin", "/sbin", "/lib", "/lib32", "/lib64"),
    *("/usr/bin", "/usr/sbin", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libexec", "/usr/include", "/usr/share"),
    *("/usr/local/bin", "/usr/local/lib", "/usr/local/lib64", "/usr/local/include", "/usr/local/share"),
    # Systems without /usr/lib keep them here.
    *("/nix/store", "/gnu/store"),
    # How to find libraries; on some systems /usr/bin/cc and the BLAS are links that lead through `alternatives`.
    *("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives"),
    # Fonts and time zone. Not passwd and group: they name people.
    *("/etc/fonts", "/etc/localtime"),
)

SETTINGS_PATHS = (
    # Many libraries expect these to be missing, few to be unreadable: an `openssl.cnf` that may not be opened stops
    # OpenSSL, a `mime.types` stops `mimetypes`.
    *("/etc/ssl/openssl.cnf", "/etc/ssl/certs", "/etc/ca-certificates", "/etc/pki/tls/openssl.cnf"),
    *("/etc/pki/tls/certs", "/etc/pki/ca-trust/extracted", "/etc/crypto-policies"),
    *("/etc/mime.types", "/etc/httpd/mime.types", "/etc/httpd/conf/mime.types", "/etc/apache/mime.types"),
    *("/etc/apache2/mime.types", "/etc/terminfo", "/etc/timezone", "/etc/os-release"),
    # The site of a distribution's own Python lies here.
    *("/etc/python3", f"/etc/python{sys.version_info.major}.{sys.version_info.minor}"),
)
"""Readable in sandboxes where forbidden files are still visible."""

KERNEL_PATHS = (
    # Processors and memory, which numeric libraries count and measure. Not all of /proc, which shows the command lines
    # of all processes. Not /proc/net, which shows the machine's connections.
    *("/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/loadavg", "/proc/uptime", "/proc/version"),
    *("/proc/filesystems", "/proc/sys/kernel/osrelease", "/proc/sys/kernel/pid_max", "/proc/sys/vm/overcommit_memory"),
    *("/sys/devices/system/cpu", "/sys/devices/system/node", "/sys/kernel/mm/transparent_hugepage"),
    # The CPU share of a container. joblib fails if it cannot be opened.
    *("/sys/fs/cgroup/cpu.max", "/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "/sys/fs/cgroup/cpu/cpu.cfs_period_us"),
)
"""Readable in sandboxes that see the machine's own /proc and /sys, and restrict them by path."""

DEVICES = {"/dev/null": True, "/dev/full": True, "/dev/random": False, "/dev/urandom": False}
"""Devices of a program, and whether it may write to them. None of them stores what is written. Not /dev/zero, which
shares memory of any size that no count shows."""

_PROCESS = (
    *("cmdline", "comm", "environ", "fd", "fdinfo", "io", "limits", "maps", "oom_score", "smaps", "smaps_rollup"),
    *("stat", "statm", "status"),
)


def own_process_paths() -> tuple[str, ...]:
    """Paths in the machine's own /proc that this process may read about itself: not `net`, `mountinfo` and `cgroup`,
    which describe the machine, and so not `task`, which contains them too."""
    return tuple(f"/proc/{os.getpid()}/{name}" for name in _PROCESS)
