"""The sandbox of macOS, by a profile in its own language. Untried: written from its description, run by nobody yet.

In a profile the last rule that fits decides. Everything that is not allowed is denied: networks, Unix sockets, shared
memory and semaphores with names (`multiprocessing.Pool` fails), signals to others. Names and sizes of all files can be
asked for, contents not.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Sequence

from mappa_core.tools.cage import kernel, places

SYSTEM = (
    # Programs, libraries and what the dynamic linker reads.
    *("/bin", "/sbin", "/usr/bin", "/usr/sbin", "/usr/lib", "/usr/libexec", "/usr/share", "/System/Library"),
    *("/System/Volumes/Preboot/Cryptexes", "/Library/Apple", "/Library/Developer/CommandLineTools"),
    *("/private/var/db/dyld", "/private/var/db/timezone", "/private/etc/localtime", "/private/etc/ssl"),
)
_BASE = """\
(version 1)
(deny default)
(allow process-fork)
(allow process-info* (target same-sandbox))
(allow signal (target same-sandbox))
(allow sysctl-read)
(allow mach-lookup (global-name "com.apple.system.opendirectoryd.libinfo"))
(allow file-read-metadata)
(allow file-read* (literal "/"))
"""


def profile(*, writable: Sequence[str], readable: Sequence[str], hidden: Sequence[str]) -> str:
    """A profile that lets a program change what is below `writable`, read and run what is below `readable` (with
    SYSTEM and the devices) and not in `hidden`, and nothing else. Paths are resolved: links have no place in a profile.

    Raises:
        ValueError: a path holds what a profile cannot.
    """
    readable = (*SYSTEM, *readable)
    return _BASE + "".join(
        [
            *_rules("allow", "file-read* process-exec*", readable),
            *_rules("deny", "file-read* process-exec*", hidden),
            *_rules("allow", "file-read* file-write* process-exec*", writable),
            *_rules("deny", "file-write-setugid", writable),
            *_rules("allow", "file-read*", places.DEVICES, kind="literal"),
            *_rules("allow", "file-write-data", [path for path, may in places.DEVICES.items() if may], kind="literal"),
        ]
    )


def restrict(profile: str) -> None:
    """Put this process, and all that it starts, under `profile` for good.

    Raises:
        OSError: the system does not accept it, and why.
    """
    error = ctypes.c_char_p()
    initialise = kernel.LIBC.sandbox_init
    initialise.argtypes = [ctypes.c_char_p, ctypes.c_uint64, ctypes.POINTER(ctypes.c_char_p)]
    if initialise(os.fsencode(profile), 0, ctypes.byref(error)) != 0:
        raise OSError(f"sandbox_init: {os.fsdecode(error.value or b'no reason given')}")


def _rules(decision: str, operations: str, paths: Iterable[str], kind: str = "subpath") -> list[str]:
    return [f"({decision} {operations} ({kind} {quoted(os.path.realpath(path))}))\n" for path in paths]


def quoted(path: str) -> str:
    """`path` as a string of the profile's language."""
    if any(not letter.isprintable() and letter not in "\n\t\r" for letter in path if ord(letter) < 128):
        raise ValueError(f"a path of the sandbox holds a control character: {path!r}")
    for letter, escape in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\t", "\\t"), ("\r", "\\r")):
        path = path.replace(letter, escape)
    return f'"{path}"'
