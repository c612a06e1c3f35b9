"""System calls of Linux that Python does not offer: thin wrappers that raise OSError with the errno."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager

LIBC = ctypes.CDLL(None, use_errno=True)  # keeps the errno of a call, which calls of the interpreter would overwrite

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_KEEPCAPS = 8
PR_SET_SECCOMP = 22
PR_CAPBSET_DROP = 24
PR_SET_MM = 35
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_REC = 1, 2, 4, 8, 32, 1 << 14
MNT_DETACH = 2
MADV_COLLAPSE = 25

AT_FDCWD, AT_EMPTY_PATH, AT_RECURSIVE = -100, 0x1000, 0x8000
OPEN_TREE_CLONE, MOVE_MOUNT_F_EMPTY_PATH = 1, 4
MS_PRIVATE = 1 << 18
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV = 1, 2, 4
OPEN_TREE, MOVE_MOUNT, MOUNT_SETATTR = 428, 429, 442
"""Numbers of calls that are the same on every machine."""

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
    # ctypes passes an int as 32 bits: of an argument that is read as 64, the upper half would be whatever was there.
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


@contextmanager
def visited_mounts(process: int) -> Iterator[None]:
    """Be in the mount namespace of a process, given by a descriptor of it, for a while."""
    own = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    enter_namespaces(process, CLONE_NEWNS)
    try:
        yield
    finally:
        enter_namespaces(own, CLONE_NEWNS)
        os.close(own)


def enter_own_user_namespace() -> None:
    """Enter a new user namespace, as the same user and with all capabilities in it, and a mount namespace of it. This
    process must have one thread."""
    uid, gid = os.geteuid(), os.getegid()
    check_result(LIBC.unshare(CLONE_NEWUSER | CLONE_NEWNS), "unshare(user, mounts)")
    # The kernel lets an ordinary user map its group only after it has given up changing groups.
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as setting:
            setting.write(text)


def enter_own_mounts() -> None:
    """Enter a new mount namespace, from which no mount reaches another one."""
    check_result(LIBC.unshare(CLONE_NEWNS), "unshare(mounts)")
    _mount("none", "/", None, MS_REC | MS_PRIVATE, None)


def mount_memory_files(place: str, size: int, count: int) -> None:
    """Mount a file system in memory at `place`, of at most `size` bytes and `count` files, folders and links."""
    _mount("tmpfs", place, "tmpfs", MS_NOSUID | MS_NODEV, f"mode=0711,size={size},nr_inodes={count}")


def limit_memory_files(place: str, size: int, count: int) -> None:
    """Limit the bytes and the number of files of the file system in memory that is mounted at `place`."""
    # A remount drops the flags that it does not repeat.
    _mount("tmpfs", place, "tmpfs", MS_REMOUNT | MS_NOSUID | MS_NODEV, f"size={size},nr_inodes={count}")


def cover_folder(place: str) -> None:
    """Mount an empty folder, which nobody but root may open, over the folder `place`."""
    _mount("tmpfs", place, "tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=0000,size=4k,nr_inodes=1")


def unmount(place: str) -> None:
    """Remove the mount at `place`, though it may be in use."""
    check_result(LIBC.umount2(os.fsencode(place), MNT_DETACH), f"umount({place})")


def _mount(source: str, place: str, kind: str | None, flags: int, options: str | None) -> None:
    kind_, options_ = (None if text is None else text.encode() for text in (kind, options))
    result = LIBC.mount(source.encode(), os.fsencode(place), kind_, ctypes.c_ulong(flags), options_)
    check_result(result, f"mount({place})")


def open_mount(path: str, *, read_only: bool) -> int:
    """Return a descriptor of a bind mount of `path`, and of all that is mounted below it, that has no place yet. What
    is mounted there later does not show. From Linux 5.12 on."""
    flags = OPEN_TREE_CLONE | os.O_CLOEXEC | AT_RECURSIVE
    mount = syscall(OPEN_TREE, AT_FDCWD, os.fsencode(path), flags, what=f"open_tree({path})")
    wanted = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | (MOUNT_ATTR_RDONLY if read_only else 0)
    _set_mount(mount, b"", AT_EMPTY_PATH | AT_RECURSIVE, wanted, MS_PRIVATE)
    return mount


def place_mount(mount: int, place: str) -> None:
    """Mount what `open_mount` returned at `place`, which may be in another mount namespace than where it was made."""
    flags = MOVE_MOUNT_F_EMPTY_PATH
    syscall(MOVE_MOUNT, mount, b"", AT_FDCWD, os.fsencode(place), flags, what=f"move_mount({place})")


def make_read_only(place: str) -> None:
    """Make the mount at `place` read-only; mounts below it stay as they are."""
    _set_mount(AT_FDCWD, os.fsencode(place), 0, MOUNT_ATTR_RDONLY, 0)


def _set_mount(folder: int, path: bytes, flags: int, attributes: int, propagation: int) -> None:
    # struct mount_attr: attributes to set and to clear, propagation, descriptor of a user namespace.
    wanted = struct.pack("=4Q", attributes, 0, propagation, 0)
    syscall(MOUNT_SETATTR, folder, path, flags, wanted, len(wanted), what="mount_setattr")


def collapse_pages(address: int, size: int) -> None:
    """Move memory of this process into huge pages, whatever is the system's setting for them."""
    where = ctypes.c_void_p(address), ctypes.c_size_t(size)
    check_result(LIBC.madvise(*where, MADV_COLLAPSE), f"madvise({MADV_COLLAPSE})")


def syscall(number: int, *arguments: int | bytes | ctypes.Array[ctypes.c_char] | None, what: str = "") -> int:
    """Make a system call that the C library may not know, and return its result. Pointers are given as their content:
    bytes to read from, a buffer to write to, None for null. An error says `what` failed."""
    function = LIBC.syscall
    function.restype = ctypes.c_long
    # As in `prctl`: an int would be passed as 32 bits.
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
    return check_result(function(ctypes.c_long(number), *words), what or f"system call {number}")


def check_result(result: int, what: str) -> int:
    """Return the result of a call of LIBC, or raise its error."""
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result
