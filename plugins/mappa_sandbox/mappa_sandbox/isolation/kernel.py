"""System calls that Python does not offer: thin wrappers that raise OSError with the errno.

The module can be imported on any system. A call that a system lacks fails when it is called, not before.
"""

from __future__ import annotations

import ctypes
import os
import sys

LINUX = sys.platform == "linux"
LIBC = ctypes.CDLL(None, use_errno=True)

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_KEEPCAPS = 8
PR_SET_SECCOMP = 22
PR_CAPBSET_DROP = 24
PR_SET_MM = 35
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47

MS_NOSUID, MS_NODEV, MS_REMOUNT = 2, 4, 32
MADV_COLLAPSE = 25

CLONE_PARENT = 0x0000_8000
CLONE_NEWNS = 0x0002_0000
CLONE_NEWCGROUP = 0x0200_0000
CLONE_NEWUTS = 0x0400_0000
CLONE_NEWIPC = 0x0800_0000
CLONE_NEWUSER = 0x1000_0000
CLONE_NEWPID = 0x2000_0000
CLONE_NEWNET = 0x4000_0000


def prctl(option: int, first: int = 0, second: int = 0) -> None:
    """Change one setting of this process. Arguments that an option does not take must be 0."""
    check_result(LIBC.prctl(option, *map(ctypes.c_ulong, (first, second, 0, 0))), f"prctl({option})")


def no_new_privileges() -> None:
    """Deny all new privileges by exec (setuid programs included) to this process and all that it starts."""
    prctl(PR_SET_NO_NEW_PRIVS, 1)


def die_with_parent(signal: int) -> None:
    """Receive `signal` when the thread that forked this process ends. Has no effect if that has happened already, and
    is undone by a change of user or capabilities: call it after them. Forks of this process do not inherit it."""
    prctl(PR_SET_PDEATHSIG, signal)


def become_subreaper() -> None:
    """Become the parent of descendants that lose their parent."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def set_dumpable() -> None:
    """Own this process's files in /proc again, after a change of user."""
    prctl(PR_SET_DUMPABLE, 1)


def enter_namespaces(process: int, flags: int) -> None:
    """Enter the namespaces given by `flags` (CLONE_NEW…) of a process, given by a descriptor of it (`os.pidfd_open`):
    all of them or none. A process namespace is entered by future children, not by this process."""
    check_result(LIBC.setns(process, flags), f"setns({flags:#x})")


def limit_memory_files(place: str, size: int, count: int) -> None:
    """Limit the bytes and the number of files of the file system in memory that is mounted at `place`."""
    flags = ctypes.c_ulong(MS_REMOUNT | MS_NOSUID | MS_NODEV)
    options = f"size={size},nr_inodes={count}".encode()
    check_result(LIBC.mount(b"tmpfs", place.encode(), b"tmpfs", flags, options), f"mount({place})")


def collapse_pages(address: int, size: int) -> None:
    """Move memory of this process into huge pages, whatever is the system's setting for them."""
    where = ctypes.c_void_p(address), ctypes.c_size_t(size)
    check_result(LIBC.madvise(*where, MADV_COLLAPSE), f"madvise({MADV_COLLAPSE})")


def syscall(number: int, *arguments: int | bytes | ctypes.Array[ctypes.c_char] | None) -> int:
    """Make a system call that the C library may not know, and return its result. Pointers are given as their content:
    bytes to read from, a buffer to write to, None for null."""
    function = LIBC.syscall
    function.restype = ctypes.c_long
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
    return check_result(function(ctypes.c_long(number), *words), f"system call {number}")


def check_result(result: int, what: str) -> int:
    """Return the result of a call of LIBC, or raise its error."""
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result
