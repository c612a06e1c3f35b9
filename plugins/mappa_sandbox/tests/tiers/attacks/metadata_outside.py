"""Changes modes, owners, times and attributes of files that are not its own.

A call that is answered with success and does nothing is fine, so what counts is what `stat` says afterwards, here and
where the files lie.
"""

import os
import sys

from kit import BAIT, MARK, call, escaped


def shown(path):
    status = os.stat(path)
    return (status.st_mode, status.st_uid, status.st_gid, status.st_mtime_ns, os.listxattr(path))


def by_descriptor(path):
    descriptor = os.open(path, os.O_RDONLY)
    os.fchmod(descriptor, 0o777)
    os.utime(descriptor, (1, 1))
    os.setxattr(descriptor, f"user.{MARK}", b"x")


ACTIONS = {
    "chmod": lambda path: os.chmod(path, 0o777),
    "lchmod": lambda path: os.chmod(path, 0o777, follow_symlinks=False),
    "chown": lambda path: os.chown(path, os.getuid(), os.getgid()),
    "lchown": lambda path: os.lchown(path, 1, 1),
    "utime": lambda path: os.utime(path, (1, 1)),
    "touch": lambda path: os.utime(path),
    "futimesat": lambda path: call("futimesat", -100, path.encode(), None),
    "setxattr": lambda path: os.setxattr(path, f"user.{MARK}", b"x"),
    "acl": lambda path: os.setxattr(path, "system.posix_acl_access", b"\x02\x00\x00\x00" + b"\x00" * 8),
    "by descriptor": by_descriptor,
}
for path in [*BAIT["host_files"], *BAIT["open_folders"], *BAIT["inputs"], os.__file__, sys.executable, "/etc/passwd"]:
    try:
        before = shown(path)
    except OSError:
        continue
    for name, action in ACTIONS.items():
        try:
            action(path)
        except (OSError, NotImplementedError):
            pass
        if shown(path) != before:
            escaped(name, path)
            before = shown(path)
print("done")
