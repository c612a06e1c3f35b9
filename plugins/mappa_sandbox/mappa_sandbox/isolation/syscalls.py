"""System calls that programs may not make, or not with every argument, and why.

All others are allowed up to the newest call that this list knows. Numbers are those of x86_64 and of aarch64, None
where that has no such call. A call is *missing* (ENOSYS) or *unsupported* (EOPNOTSUPP) where libraries have a fallback,
and *refused* (EPERM) where programs must not make it.

Allowed on purpose: `kill` and its relatives (restricted by the process namespace, or Landlock's scope), opening and
naming files (by mounts, or Landlock), `execve` (by no new privileges), limits of the process itself (they can only be
lowered), `pidfd_open` (no more than a process id), `seccomp` and `landlock_*` (they only restrict further), `stat`,
`chdir` and `readlink` (a filter sees no path; without namespaces they reveal names and sizes, never contents), and
locks (two programs can only exchange bits by them, as they can by processor load).
"""

from __future__ import annotations

import stat
from dataclasses import dataclass
from typing import NamedTuple

from mappa_sandbox.isolation import kernel

NEWEST_CALL = 469
"""Calls newer than `file_setattr` (Linux 6.17) are missing, and so are those of x32, which have bit 30: nobody has
reviewed them yet."""


class Numbers(NamedTuple):
    x86_64: int
    aarch64: int | None


@dataclass(frozen=True)
class Condition:
    """Condition on an argument, counted from 0: its bits in `mask` must be one of `values`, or if not `among`, none of
    them. Only the lower 32 bits count, as in the kernel for arguments of type int; with `upper`, the upper 32."""

    argument: int
    values: tuple[int, ...]
    among: bool = True
    mask: int = 0xFFFF_FFFF
    upper: bool = False


_REFUSED: dict[str, tuple[int, int | None]] = {
    # Networks, Unix sockets included. A pair of connected sockets stays (below); without `sendmsg` it cannot carry
    # descriptors, so that every open file is in some process's table, where it is counted.
    "socket": (41, 198), "connect": (42, 203), "bind": (49, 200), "listen": (50, 201), "accept": (43, 202),
    "accept4": (288, 242), "sendmsg": (46, 211), "sendmmsg": (307, 269),
    # Namespaces and mounts, by the old calls and the new ones. A user namespace would give capabilities, and with them
    # most of the kernel to attack; `clone` is below.
    "unshare": (272, 97), "setns": (308, 268), "chroot": (161, 51), "pivot_root": (155, 41), "mount": (165, 40),
    "umount2": (166, 39), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    "statmount": (457, 457), "listmount": (458, 458), "open_tree_attr": (467, 467),
    # Other processes: their memory, descriptors and scheduling. Between processes of one user little else protects.
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "process_madvise": (440, 440), "process_mrelease": (448, 448), "pidfd_getfd": (438, 438), "kcmp": (312, 272),
    "migrate_pages": (256, 238), "move_pages": (279, 239), "get_robust_list": (274, 100),
    # Parts of the kernel that have been used for escapes, and that no agent's program needs.
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "uselib": (134, None),
    "modify_ldt": (154, None), "lookup_dcookie": (212, 18), "nfsservctl": (180, 42), "vhangup": (153, 58),
    "lsm_set_self_attr": (460, 460),
    # Files by handle instead of by path: bypasses every rule about paths for a process that may read everything.
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265),
    # Watching folders: reveals names of files that may not be opened, and uses up the user's watches.
    "inotify_init": (253, None), "inotify_init1": (294, 26), "inotify_add_watch": (254, 27),
    "fanotify_init": (300, 262), "fanotify_mark": (301, 263),
    # Keys of the user and of the session.
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    # The machine: modules, its name, its clock, its disks, its ports. They need privileges, which no program has.
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106), "kexec_load": (246, 104),
    "kexec_file_load": (320, 294), "reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225),
    "quotactl": (179, 60), "quotactl_fd": (443, 443), "acct": (163, 89), "syslog": (103, 116),
    "settimeofday": (164, 170), "clock_settime": (227, 112), "clock_adjtime": (305, 266), "adjtimex": (159, 171),
    "sethostname": (170, 161), "setdomainname": (171, 162), "iopl": (172, None), "ioperm": (173, None),
    # Memory, queues and locks with a key or a name, which outlive their creator and are shared by a user's processes.
    "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195), "shmdt": (67, 197), "semget": (64, 190),
    "semop": (65, 193), "semctl": (66, 191), "semtimedop": (220, 192), "msgget": (68, 186), "msgsnd": (69, 189),
    "msgrcv": (70, 188), "msgctl": (71, 187), "mq_open": (240, 180), "mq_unlink": (241, 181),
    "mq_timedsend": (242, 182), "mq_timedreceive": (243, 183), "mq_notify": (244, 184), "mq_getsetattr": (245, 185),
    # Attributes of files: in memory they take any room, and no count shows it. What copies files goes on without.
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "setxattrat": (463, 463),
    # Flags of a file that outlive the program, such as immutable. By descriptor: `ioctl`, below.
    "file_setattr": (469, 469),
}  # fmt: skip

_MISSING: dict[str, tuple[int, int | None]] = {
    # Its arguments are in memory, where a filter cannot see whether it makes namespaces; C libraries fall back to
    # `clone`.
    "clone3": (435, 435),
    # Likewise the flags of opening; no library needs it.
    "openat2": (437, 437),
    # Calls made by the kernel, which this filter does not see.
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    # Memory that no process is charged for: files in memory without a path, and pages that only a pipe holds.
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "vmsplice": (278, 75),
    # Of these there is one small number for the whole machine.
    "io_setup": (206, 0),
}  # fmt: skip

_UNSUPPORTED: dict[str, tuple[int, int | None]] = {
    # Room for a file in one call, at once and beyond its end, where no limit of its size counts. The C library writes
    # instead.
    "fallocate": (285, 47),
}  # fmt: skip

_METADATA: dict[str, tuple[int, int | None]] = {
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452),
    "chown": (92, None), "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54),
    "utime": (132, None), "utimes": (235, None), "futimesat": (261, None), "utimensat": (280, 88),
    "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16), "removexattrat": (466, 466),
}  # fmt: skip

_CONDITIONAL: dict[str, tuple[int, int | None]] = {
    "socketpair": (53, 199), "setsockopt": (54, 208), "sendto": (44, 206), "clone": (56, 220), "personality": (135, 92),
    "mknod": (133, None), "mknodat": (259, 33), "ioctl": (16, 29), "fcntl": (72, 25), "prctl": (157, 167),
    "prlimit64": (302, 261), "setpriority": (141, 140), "ioprio_set": (251, 30),
    "sched_setaffinity": (203, 122), "sched_setscheduler": (144, 119), "sched_setparam": (142, 118),
    "sched_setattr": (314, 274), "close_range": (436, 436),
}  # fmt: skip

REFUSED_CALLS = {name: Numbers(*numbers) for name, numbers in _REFUSED.items()}
MISSING_CALLS = {name: Numbers(*numbers) for name, numbers in _MISSING.items()}
UNSUPPORTED_CALLS = {name: Numbers(*numbers) for name, numbers in _UNSUPPORTED.items()}
METADATA_CALLS = {name: Numbers(*numbers) for name, numbers in _METADATA.items()}
"""Calls that change a file's mode, owner, times and attributes: neither Landlock nor anything else restricts these by
path, so that a program could change them for all files that its user owns."""
TOUCH_CALL = "utimensat"
"""The call among METADATA_CALLS by which libraries test whether a file exists."""
CONDITIONAL_CALLS = {name: Numbers(*numbers) for name, numbers in _CONDITIONAL.items()}
"""Allowed where all of CONDITIONS hold, else refused."""
SHARING_NUMBERS = (9, 222)
"""`mmap`, which shares memory without a file: beyond MAX_SHARED_BYTES it fails (ENOMEM). Such memory stays allocated in
full as long as one page of it is mapped, and shows its size to root alone."""
MAX_SHARED_BYTES = 1 << 20

_AF_UNIX, _SOCK_STREAM, _SOCK_FLAGS = 1, 1, 0o2004000
_MSG_OOB = 1
_BUFFER_SIZES = (7, 8, 32, 33)
"""SO_SNDBUF, SO_RCVBUF and the forms of both that go beyond the system's limit."""
_NEW_NAMESPACES = (
    kernel.CLONE_NEWNS | kernel.CLONE_NEWCGROUP | kernel.CLONE_NEWUTS | kernel.CLONE_NEWIPC
    | kernel.CLONE_NEWUSER | kernel.CLONE_NEWPID | kernel.CLONE_NEWNET
)  # fmt: skip
_CLONE_FILES, _CLONE_THREAD, _CLOSE_RANGE_UNSHARE = 0x400, 0x1_0000, 2
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
_FILE_FLAGS = (0x4008_6602, 0x4004_6602, 0x401C_5820, 0x4008_7602, 0x4004_7602, 0x4080_6685, 0x800C_6613)
"""FS_IOC_SETFLAGS, its form of 32 bits, FS_IOC_FSSETXATTR, FS_IOC_SETVERSION, its form of 32 bits,
FS_IOC_ENABLE_VERITY, FS_IOC_SET_ENCRYPTION_POLICY."""
_F_SETLEASE, _F_SETPIPE_SZ, _F_SETDELEG = 1024, 1031, 1040
_PRIO_PROCESS, _IOPRIO_WHO_PROCESS = 0, 1

_ITSELF = Condition(0, (0,))
"""Only the calling thread. Otherwise a program could starve another process of its user or have a limit kill it."""

CONDITIONS: dict[str, tuple[Condition, ...]] = {
    # Between processes of one program. Other kinds of pairs can be sent from one to another by address.
    "socketpair": (Condition(0, (_AF_UNIX,)), Condition(1, (_SOCK_STREAM,), mask=0xFFFF_FFFF ^ _SOCK_FLAGS)),
    # Buffers keep the default size, which memory accounting assumes.
    "setsockopt": (Condition(2, _BUFFER_SIZES, among=False),),
    # Only to the other end; out-of-band data has been a way to attack the kernel.
    "sendto": (Condition(4, (0,)), Condition(4, (0,), upper=True), Condition(3, (0,), mask=_MSG_OOB)),
    # No namespaces, and no siblings: children are below their parent. Threads of a process share its descriptors, which
    # are counted once. The flags come first on both machines.
    "clone": (
        Condition(0, (0,), mask=_NEW_NAMESPACES | kernel.CLONE_PARENT),
        Condition(0, (0, _CLONE_FILES, _CLONE_FILES | _CLONE_THREAD), mask=_CLONE_FILES | _CLONE_THREAD),
    ),
    "close_range": (Condition(2, (0,), mask=_CLOSE_RANGE_UNSHARE),),
    # Queries, and the default. Others weaken memory protection.
    "personality": (Condition(0, (0, 0xFFFF_FFFF)),),
    # Regular files and FIFOs, no devices and no sockets.
    "mknod": (Condition(1, (0, stat.S_IFREG, stat.S_IFIFO), mask=0o170000),),
    "mknodat": (Condition(2, (0, stat.S_IFREG, stat.S_IFIFO), mask=0o170000),),
    # No typing into a terminal, and no flags of files that outlive the program.
    "ioctl": (Condition(1, (_TIOCSTI, _TIOCLINUX, *_FILE_FLAGS), among=False),),
    # A lease on a readable file makes others who open it wait; memory accounting assumes pipes of the default size.
    "fcntl": (Condition(1, (_F_SETLEASE, _F_SETPIPE_SZ, _F_SETDELEG), among=False),),
    # It could change which file a process is reported to run.
    "prctl": (Condition(0, (kernel.PR_SET_MM,), among=False),),
    "prlimit64": (_ITSELF,),
    "setpriority": (Condition(0, (_PRIO_PROCESS,)), Condition(1, (0,))),
    "ioprio_set": (Condition(0, (_IOPRIO_WHO_PROCESS,)), Condition(1, (0,))),
    "sched_setaffinity": (_ITSELF,),
    "sched_setscheduler": (_ITSELF,),
    "sched_setparam": (_ITSELF,),
    "sched_setattr": (_ITSELF,),
}
