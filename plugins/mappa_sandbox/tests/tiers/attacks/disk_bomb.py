"""Fills the disk: big files, many, nameless ones, sparse ones, in folders, in its home; at most 500 MB or 20,000."""

import os
import time

from kit import BAIT, MARK, MEGABYTE, escaped

MOST = 500
CHUNK = os.urandom(MEGABYTE)
held = []


def write(descriptor):
    written = 0
    try:
        while written < MOST and os.write(descriptor, CHUNK) == MEGABYTE:
            written += 1
    except OSError:
        pass
    return written


def many(make, most=MOST):
    total = 0
    while total < most:
        descriptor = make(len(held))
        held.append(descriptor)
        written = write(descriptor)
        if written == 0:
            break
        total += written
    return total


def named(number):
    return os.open(f"big-{number}", os.O_CREAT | os.O_WRONLY, 0o600)


def nameless(number):
    return os.open(".", os.O_TMPFILE | os.O_WRONLY, 0o600)


def unlinked(number):
    descriptor = named(number)
    os.unlink(f"big-{number}")
    return descriptor


def at_home(number):
    return os.open(f"{os.environ['HOME']}/{MARK}-{number}", os.O_CREAT | os.O_WRONLY, 0o600)


def closed():
    """Named files, each closed before the next: only the folder tells of them."""
    total = 0
    for number in range(MOST // 5):
        descriptor = os.open(f"closed-{number}", os.O_CREAT | os.O_WRONLY, 0o600)
        try:
            for _ in range(5):
                total += os.write(descriptor, CHUNK) // MEGABYTE
        finally:
            os.close(descriptor)
    return total


def allocated():
    total = 0
    for number in range(60):
        held.append(named(number))
        os.posix_fallocate(held[-1], 0, 5 * MEGABYTE)
        total += 5
    return total


def crowd():
    for number in range(20_000):
        os.close(os.open(f"f{number}", os.O_CREAT | os.O_WRONLY, 0o600))
    return MOST


def folders():
    for number in range(20_000):
        os.mkdir(f"d{number}")
    return MOST


def links():
    for number in range(20_000):
        os.symlink("x" * 1000, f"l{number}")
    return MOST


WAYS = {
    "named": lambda: many(named),
    "nameless": lambda: many(nameless),
    "unlinked": lambda: many(unlinked),
    "home": lambda: many(at_home),
    "closed": closed,
    "allocated": allocated,
    "crowd": crowd,
    "folders": folders,
    "links": links,
}
name = BAIT["way"]
try:
    written = WAYS[name]()
except OSError as error:
    print(name, "ended with", error)
    written = 0
time.sleep(3)
print(name, written, flush=True)
# A home may lie in memory, and then has the limit of memory.
if written * MEGABYTE > 3 * BAIT["workspace_bytes"] + (BAIT["memory_bytes"] if name == "home" else 0):
    escaped(written, "MB as", name)
print("done", flush=True)
os._exit(0)
