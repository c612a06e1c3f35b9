"""Asks the kernel for more: privileges, namespaces, mounts, limits, and its odd corners."""

import ctypes
import fcntl
import os
import resource
import subprocess
import termios

from kit import escaped, must_fail, syscall

SPACES = {"NEWNS": 0x20000, "NEWUTS": 0x4000000, "NEWIPC": 0x8000000, "NEWUSER": 0x10000000, "NEWPID": 0x20000000}
SPACES |= {"NEWNET": 0x40000000, "NEWCGROUP": 0x2000000, "NEWTIME": 0x80}
for name, flag in SPACES.items():
    must_fail(f"unshare {name}", syscall, "unshare", flag)
    must_fail(f"unshare {name} with a user's", syscall, "unshare", flag | SPACES["NEWUSER"])


def clone(flag):
    pid = syscall("clone", flag | 17, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return pid


def clone3(flag):
    arguments = (ctypes.c_uint64 * 11)(flag, 0, 0, 0, 17)
    pid = syscall("clone3", arguments, 88)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return pid


for flag in (SPACES["NEWUSER"], SPACES["NEWUSER"] | SPACES["NEWNS"], SPACES["NEWPID"] | SPACES["NEWUSER"]):
    must_fail(f"clone with {flag:x}", clone, flag)
    must_fail(f"clone3 with {flag:x}", clone3, flag)

CALLS = {
    "mount": (b"none", b"/tmp", b"tmpfs", 0, 0),
    "umount2": (b"/proc", 2),
    "fsopen": (b"tmpfs", 0),
    "open_tree": (-100, b"/", 1),
    "pivot_root": (b"/tmp", b"/tmp"),
    "chroot": (b"/tmp",),
    "bpf": (0, bytes(128), 128),
    "userfaultfd": (0,),
    "perf_event_open": (b"\1\0\0\0\x80\0\0\0" + bytes(120), 0, -1, -1, 0),
    "io_uring_setup": (8, bytes(200)),
    "keyctl": (0, -3, 1),
    "add_key": (b"user", b"mappa", b"x", 1, -3),
    "request_key": (b"user", b"mappa", 0, -3),
    "init_module": (0, 0, b""),
    "kexec_load": (0, 0, 0, 0),
    "reboot": (0, 0, 0, 0),
    "swapon": (b"/dev/null", 0),
    "quotactl": (0x80000700, b"/dev/null", 0, 0),
    "acct": (b"/dev/null",),
    "syslog": (3, ctypes.create_string_buffer(16), 16),
    "fanotify_init": (0, 0),
    "memfd_secret": (0,),
    "personality": (0x0040000,),
    "sethostname": (b"mine", 4),
    "setdomainname": (b"mine", 4),
}
for name, arguments in CALLS.items():
    must_fail(name, syscall, name, *arguments)
for pid in ("self", "1"):
    must_fail(f"setns to {pid}", lambda pid=pid: syscall("setns", os.open(f"/proc/{pid}/ns/user", os.O_RDONLY), 0))


def by_handle():
    """Open a file by its number on the disk, past every path."""
    handle = (ctypes.c_uint32 * 34)(128)
    mount = ctypes.c_int()
    syscall("name_to_handle_at", -100, b".", handle, ctypes.byref(mount), 0)
    return syscall("open_by_handle_at", os.open(".", os.O_RDONLY), handle, os.O_RDONLY)


must_fail("opening by handle", by_handle)

for name in ("setuid", "setgid", "seteuid", "setegid"):
    must_fail(f"{name}(0)", lambda name=name: getattr(os, name)(0))
must_fail("groups", os.setgroups, [0])
must_fail("another user", os.setuid, os.getuid() + 1)
must_fail("a higher priority", os.nice, -5)
must_fail("real time", lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)))
for kind in ("AS", "CPU", "FSIZE", "NPROC", "NOFILE", "CORE", "MEMLOCK", "STACK", "RTPRIO", "NICE"):
    number = getattr(resource, f"RLIMIT_{kind}")
    soft, hard = resource.getrlimit(number)
    if kind in ("AS", "CPU", "FSIZE") and hard == resource.RLIM_INFINITY:
        escaped("no limit on", kind)
    if hard != resource.RLIM_INFINITY:
        must_fail(f"raising {kind}", resource.setrlimit, number, (soft, hard + 1))
        must_fail(f"unlimited {kind}", resource.setrlimit, number, (soft, resource.RLIM_INFINITY))
must_fail("typing into a terminal", fcntl.ioctl, 0, termios.TIOCSTI, b"x")
must_fail("the clock", lambda: __import__("time").clock_settime(0, __import__("time").time()))

status = dict(line.split(":\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\t" in line)
for name in ("CapEff", "CapPrm", "CapInh", "CapAmb"):
    # To read whatever Landlock lets it read is the one capability that a program may have.
    if int(status[name], 16) & ~(1 << 2):
        escaped("has capabilities", name, status[name])
if status["NoNewPrivs"].strip() != "1":
    escaped("may get new privileges")
if status["Seccomp"].strip() != "2":
    escaped("no filter of system calls")
if os.getuid() == 0 or os.geteuid() == 0 or 0 in os.getgroups():
    escaped("is root", os.getuid(), os.getgroups())

for command in (
    ["su", "-c", "id -u"], ["sudo", "-n", "id", "-u"], ["mount"], ["ping", "-c1", "-W1", "127.0.0.1"],
    ["newuidmap", str(os.getpid()), "0", "0", "1"], ["unshare", "-Ur", "id", "-u"], ["bwrap", "--dev-bind", "/", "/", "id"],
    ["chsh", "-s", "/bin/sh"], ["crontab", "-l"], ["at", "now"], ["systemd-run", "--user", "true"],
):  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        continue
    if done.returncode == 0 and command != ["mount"]:
        escaped("ran", *command, done.stdout.decode().strip())
print("done")
