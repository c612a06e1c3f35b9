"""The sandbox of macOS, set up by a profile in its own language. Untested: written from its documentation.

In a profile the last matching rule decides. Everything that is not allowed is denied: networks, Unix sockets, named
shared memory and semaphores (`multiprocessing.Pool` fails), signals to others. Names and sizes of all files can be
read, contents not.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Sequence

from mappa_sandbox.isolation import kernel, system_paths

MACOS_SYSTEM_PATHS = (
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


def build_profile(*, writable: Sequence[str], readable: Sequence[str], hidden: Sequence[str]) -> str:
    """Build a profile that lets a program change all below `writable`, read and run all below `readable` (with
    MACOS_SYSTEM_PATHS and the devices) except `hidden`, and nothing else. Paths are resolved, as a profile cannot
    contain links.

    Raises:
        ValueError: a path contains characters that a profile cannot.
    """
    readable = (*MACOS_SYSTEM_PATHS, *readable)
    return _BASE + "".join(
        [
            *_rules("allow", "file-read* process-exec*", readable),
            *_rules("deny", "file-read* process-exec*", hidden),
            *_rules("allow", "file-read* file-write* process-exec*", writable),
            *_rules("deny", "file-write-setugid", writable),
            *_rules("allow", "file-read*", system_paths.DEVICES, kind="literal"),
            *_rules(
                "allow", "file-write-data", [path for path, may in system_paths.DEVICES.items() if may], kind="literal"
            ),
        ]
    )


def apply_profile(profile: str) -> None:
    """Apply `profile` to this process and all that it starts, for good.

    Raises:
        OSError: the system does not accept it; says why.
    """
    error = ctypes.c_char_p()
    initialise = kernel.LIBC.sandbox_init
    initialise.argtypes = [ctypes.c_char_p, ctypes.c_uint64, ctypes.POINTER(ctypes.c_char_p)]
    if initialise(os.fsencode(profile), 0, ctypes.byref(error)) != 0:
        raise OSError(f"sandbox_init: {os.fsdecode(error.value or b'no reason given')}")


def _rules(decision: str, operations: str, paths: Iterable[str], kind: str = "subpath") -> list[str]:
    return [f"({decision} {operations} ({kind} {quote(os.path.realpath(path))}))\n" for path in paths]


def quote(path: str) -> str:
    """Quote `path` as a string of the profile's language."""
    if any(not letter.isprintable() and letter not in "\n\t\r" for letter in path if ord(letter) < 128):
        raise ValueError(f"a path of the sandbox holds a control character: {path!r}")
    for letter, escape in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\t", "\\t"), ("\r", "\\r")):
        path = path.replace(letter, escape)
    return f'"{path}"'
