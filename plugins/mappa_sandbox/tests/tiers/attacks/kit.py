"""What the attack programs share: where the bait lies, and how they tell what they managed.

It is copied into the workspace beside `bait.json` and imported by programs that run inside. An attack prints a line
`ESCAPED …` for everything that it managed and `done` at its end. It never knows a secret: it looks for the shape.
"""

import ctypes
import json
import os
import platform
import re

with open("bait.json", encoding="utf-8") as listed:
    BAIT = json.load(listed)
MARK = BAIT["mark"]
"""Stands in the name of every file and process that an attack makes, so that what is left of it can be found."""
SECRET = re.compile(rb"planted-secret-[0-9a-f]{16}")
MEGABYTE = 1 << 20
X86 = platform.machine() == "x86_64"
LIBC = ctypes.CDLL(None, use_errno=True)

NUMBERS = {  # system call -> (x86_64, aarch64)
    "acct": (163, 89),
    "add_key": (248, 217),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "clone": (56, 220),
    "clone3": (435, 435),
    "fanotify_init": (300, 262),
    "fsopen": (430, 430),
    "init_module": (175, 105),
    "io_uring_setup": (425, 425),
    "kcmp": (312, 272),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "memfd_secret": (447, 447),
    "mknodat": (259, 33),
    "mount": (165, 40),
    "mq_open": (240, 180),
    "msgget": (68, 186),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "pidfd_getfd": (438, 438),
    "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424),
    "pivot_root": (155, 41),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "semget": (64, 190),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "shmget": (29, 194),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
}


def syscall(name, *arguments):
    """Make a system call past the C library; OSError where the kernel refuses."""
    number = NUMBERS[name][0 if X86 else 1]
    wide = [ctypes.c_long(argument) if isinstance(argument, int) else argument for argument in arguments]
    result = LIBC.syscall(ctypes.c_long(number), *wide)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), name)
    return result


def call(function, *arguments):
    """A function of the C library that answers -1 where the kernel refuses, which becomes an OSError."""
    result = getattr(LIBC, function)(*arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), function)
    return result


def escaped(*what):
    print("ESCAPED", *what, flush=True)


def must_fail(what, action, *arguments, **named):
    """Whether `action` is refused, as it must be: doing it without an exception is an escape."""
    try:
        result = action(*arguments, **named)
    except Exception:
        return True
    escaped(what, repr(result)[:200])
    return False


def must_not_tell(what, action, *arguments):
    """What `action` gives, if anything, must hold no secret."""
    try:
        told = action(*arguments)
    except Exception:
        return
    text = told if isinstance(told, bytes) else repr(told).encode()
    found = SECRET.search(text)
    if found:
        escaped("told", what, found[0].decode())


def read(path, most=4 * MEGABYTE):
    """The first bytes of a file that may be anything; never waits for a FIFO."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        return os.read(descriptor, most)
    finally:
        os.close(descriptor)


def listed(folder):
    """What lies in a folder; nothing where it cannot be listed."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def others():
    """Ids of processes that are neither this one nor started by it: all that /proc shows, the parent, and the bait."""
    shown = {int(name) for name in listed("/proc") if name.isdigit()}
    return sorted({*shown, 1, 2, os.getppid(), *BAIT["processes"]} - {0, os.getpid()})
