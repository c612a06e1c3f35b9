"""Takes memory that shows in no process: files in memory, nameless ones, pipes; at most 1 GB of each."""

import ctypes
import fcntl
import os
import time

from kit import BAIT, LIBC, MARK, MEGABYTE, escaped

MOST = 1000
CHUNK = bytes(MEGABYTE)
held = []


def fill(descriptor):
    """Megabytes that could be written."""
    held.append(descriptor)
    for written in range(MOST):
        try:
            if os.write(descriptor, CHUNK) < MEGABYTE:
                return written
        except OSError:
            return written
    return MOST


def many(make):
    """Files that are each below the limit of a file."""
    total = 0
    while total < MOST:
        written = fill(make(len(held)))
        if written == 0:
            break
        total += written
    return total


def named(folder):
    return lambda number: os.open(f"{folder}/{MARK}-{number}", os.O_CREAT | os.O_WRONLY, 0o600)


def nameless(folder):
    return lambda number: os.open(folder, os.O_TMPFILE | os.O_WRONLY, 0o600)


def unlinked(folder):
    def make(number):
        path = f"{folder}/{MARK}-{number}"
        descriptor = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
        os.unlink(path)
        return descriptor

    return make


def pipes():
    total = 0
    while total < MOST * MEGABYTE:
        _, end = os.pipe()
        held.extend((_, end))
        os.set_blocking(end, False)
        try:
            fcntl.fcntl(end, fcntl.F_SETPIPE_SZ, MEGABYTE)
        except OSError:
            pass
        total += os.write(end, CHUNK)
    return total // MEGABYTE


def system_v():
    """Shared memory that outlives its makers, filled."""
    LIBC.shmat.restype = ctypes.c_void_p
    total = 0
    while total < MOST:
        key = LIBC.shmget(0, 50 * MEGABYTE, 0o1600)
        place = LIBC.shmat(key, None, 0) if key >= 0 else None
        LIBC.shmctl(key, 0, None)
        if place in (None, 2**64 - 1):
            break
        ctypes.memset(place, 1, 50 * MEGABYTE)
        total += 50
    return total


home = os.environ["HOME"]
WAYS = {
    "memfd": lambda: many(lambda number: os.memfd_create(str(number))),
    "/dev/shm": lambda: many(named("/dev/shm")),
    "nameless in /dev/shm": lambda: many(nameless("/dev/shm")),
    "home": lambda: many(named(home)),
    "nameless at home": lambda: many(nameless(home)),
    "unlinked at home": lambda: many(unlinked(home)),
    "/tmp": lambda: many(named("/tmp")),
    "/dev": lambda: many(named("/dev")),
    "/run": lambda: many(named("/run")),
    "pipes": pipes,
    "System V": system_v,
}
name = BAIT["way"]
try:
    taken = WAYS[name]()
except OSError as error:
    print(name, "ended with", error)
    taken = 0
print(name, taken, "MB", flush=True)
if taken * MEGABYTE > 2 * BAIT["memory_bytes"]:
    time.sleep(3)
    escaped(taken, "MB in", name)
print("done", flush=True)
