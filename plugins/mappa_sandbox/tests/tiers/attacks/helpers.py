"""Takes hold of the processes that make up the cage: by their memory, descriptors, links and tracing."""

import ctypes
import os

from kit import escaped, listed, must_fail, others, syscall

PTRACE_SEIZE = 0x4206
buffer = ctypes.create_string_buffer(64)


class Span(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def write_memory(pid):
    span = Span(ctypes.addressof(buffer), 64)
    return syscall("process_vm_writev", pid, ctypes.byref(span), 1, ctypes.byref(span), 1, 0)


def take_descriptor(pid):
    return syscall("pidfd_getfd", syscall("pidfd_open", pid, 0), 0, 0)


seen = [pid for pid in others() if pid > 0]
for pid in seen:
    places = [f"/proc/{pid}", f"/proc/self/../{pid}", f"/proc/{pid}/task/{pid}", f"/proc/thread-self/../../../{pid}"]
    for place in places:
        for name in ("mem", "clear_refs", "timerslack_ns", "oom_score_adj", "coredump_filter", "setgroups", "comm"):
            must_fail(f"writing {place}/{name}", os.open, f"{place}/{name}", os.O_WRONLY)
        for name in ("mem", "maps", "environ", "auxv", "pagemap", "syscall", "stack", "personality"):
            must_fail(f"reading {place}/{name}", lambda path=f"{place}/{name}": os.read(os.open(path, os.O_RDONLY), 64))
        for name in ("cwd", "root", "exe", "ns/mnt", "ns/pid", "ns/user"):
            must_fail(f"following {place}/{name}", os.readlink, f"{place}/{name}")
            must_fail(f"entering {place}/{name}", os.stat, f"{place}/{name}")
        for number in range(16):
            must_fail(f"opening {place}/fd/{number}", os.open, f"{place}/fd/{number}", os.O_RDWR | os.O_NONBLOCK)
        must_fail(f"listing {place}/fd", os.listdir, f"{place}/fd")
        must_fail(f"listing {place}/map_files", os.listdir, f"{place}/map_files")
    must_fail(f"tracing {pid}", syscall, "ptrace", PTRACE_SEIZE, pid, 0, 0)
    must_fail(f"writing the memory of {pid}", write_memory, pid)
    must_fail(f"taking a descriptor of {pid}", take_descriptor, pid)
    must_fail(f"limits of {pid}", lambda pid=pid: __import__("resource").prlimit(pid, 1, (-1, -1)))
    must_fail(f"uncovering {pid}", syscall, "umount2", f"/proc/{pid}".encode(), 2)
    if listed(f"/proc/{pid}/task"):
        escaped("the threads of", pid, "are shown")
print(len(seen), "processes")
print("done")
