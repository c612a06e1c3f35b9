"""Takes hold of other processes: by ptrace, by their memory, by their descriptors, by limits and priorities."""

import ctypes
import os
import resource

from kit import BAIT, must_fail, others, syscall

PTRACE_SEIZE, PTRACE_ATTACH = 0x4206, 16
buffer = ctypes.create_string_buffer(4096)


class Span(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def read_memory(pid, name="process_vm_readv"):
    local = Span(ctypes.addressof(buffer), 64)
    remote = Span(ctypes.addressof(buffer), 64)  # a fork has the same things at the same places
    return syscall(name, pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)


def take_descriptor(pid):
    return syscall("pidfd_getfd", syscall("pidfd_open", pid, 0), 0, 0)


for pid in others():
    must_fail(f"ptrace of {pid}", syscall, "ptrace", PTRACE_SEIZE, pid, 0, 0)
    must_fail(f"reading the memory of {pid}", read_memory, pid)
    must_fail(f"writing the memory of {pid}", read_memory, pid, "process_vm_writev")
    must_fail(f"taking a descriptor of {pid}", take_descriptor, pid)
    must_fail(f"comparing itself with {pid}", syscall, "kcmp", os.getpid(), pid, 0, 0, 0)

for pid in BAIT["processes"]:
    must_fail(f"limits of {pid}", lambda pid=pid: resource.prlimit(pid, resource.RLIMIT_NOFILE))
    must_fail(f"priority of {pid}", lambda pid=pid: os.setpriority(os.PRIO_PROCESS, pid, 10))
    must_fail(f"processors of {pid}", lambda pid=pid: os.sched_setaffinity(pid, {0}))
    must_fail(f"group of {pid}", lambda pid=pid: os.setpgid(pid, os.getpgrp()))

must_fail("being traced by anybody", syscall, "ptrace", 0, 0, 0, 0)
print("done")
