"""What /proc, /sys and /dev offer to somebody who looks for a way out."""

import os
import stat

from kit import BAIT, escaped, listed, must_fail, must_not_tell, others


def same_value(path):
    """Write to a setting what it already holds: harmless where it works, and it must not work."""
    with open(path) as setting:
        value = setting.read()
    with open(path, "w") as setting:
        setting.write(value)


for path in ("kernel/core_pattern", "kernel/hostname", "kernel/modprobe", "vm/overcommit_memory", "fs/file-max"):
    must_fail(f"writing /proc/sys/{path}", same_value, f"/proc/sys/{path}")
for path in ("/sys/kernel/uevent_helper", "/sys/kernel/mm/transparent_hugepage/enabled", "/sys/power/state"):
    must_fail(f"writing {path}", same_value, path)
for path in ("/proc/sysrq-trigger", "/proc/kmsg", "/proc/kcore", "/dev/mem", "/dev/kmem", "/dev/port", "/dev/kmsg"):
    must_fail(f"opening {path}", os.open, path, os.O_RDONLY | os.O_NONBLOCK)
    must_fail(f"opening {path} to write", os.open, path, os.O_WRONLY | os.O_NONBLOCK)


def map_users(name):
    descriptor = os.open(f"/proc/self/{name}", os.O_WRONLY)
    os.write(descriptor, b"0 0 1\n")


for name in ("uid_map", "gid_map"):
    must_fail(f"mapping users by {name}", map_users, name)


def less_killable():
    with open("/proc/self/oom_score_adj", "w") as score:
        score.write("-1000")


must_fail("making itself the last to be killed", less_killable)

for pid in others():
    for flags, how in ((os.O_RDONLY, "read"), (os.O_RDWR, "write")):
        must_fail(f"opening /proc/{pid}/mem to {how}", os.open, f"/proc/{pid}/mem", flags)
    must_fail(f"/proc/{pid}/oom_score_adj", same_value, f"/proc/{pid}/oom_score_adj")
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        descriptors = [str(number) for number in range(64)]
    for number in descriptors:
        path = f"/proc/{pid}/fd/{number}"
        try:
            target = os.readlink(path)
            kind = os.stat(path).st_mode
        except OSError:
            continue
        if target == "/dev/null":
            continue
        if stat.S_ISDIR(kind):
            must_not_tell(path, lambda path=path: [os.listdir(path), os.listdir(f"{path}/..")])
            must_fail(f"taking the folder {path} -> {target}", os.open, path, os.O_RDONLY | os.O_DIRECTORY)
        else:
            must_fail(f"taking {path} -> {target}", os.open, path, os.O_RDWR | os.O_NONBLOCK)
    must_not_tell(f"/proc/{pid}/map_files", lambda pid=pid: os.listdir(f"/proc/{pid}/map_files"))

for name in listed("/dev") or ("sda", "vda", "kvm", "fuse", "loop-control"):
    path = f"/dev/{name}"
    harmless = ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "stdin", "stdout", "stderr", "console")
    if name in harmless or os.path.isdir(path):
        continue
    must_fail(f"opening {path}", os.open, path, os.O_RDWR | os.O_NONBLOCK)
for path in (
    "/dev/net/tun",
    "/dev/tty",
    "/dev/console",
    "/dev/fuse",
    "/dev/kvm",
    "/dev/vhost-net",
    "/dev/mapper/control",
):
    must_fail(f"opening {path}", os.open, path, os.O_RDWR | os.O_NONBLOCK | os.O_NOCTTY)
for name in listed("/dev/pts") or ("0", "1", "2"):
    if name != "ptmx":
        must_fail(f"writing to the terminal {name}", os.open, f"/dev/pts/{name}", os.O_WRONLY | os.O_NOCTTY)

if any(os.path.exists(path) for path in BAIT["secret_files"] + BAIT["host_files"]):
    try:
        open(next(path for path in BAIT["secret_files"] + BAIT["host_files"] if os.path.exists(path))).close()
        escaped("a file of the host can be opened")
    except OSError:
        pass
print("done")
