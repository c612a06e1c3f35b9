"""Takes memory in one process, in every kind that a process can ask for; at most 1.5 GB of each."""

import mmap
import time

from kit import BAIT, MEGABYTE, escaped

MOST = 1500
STEP = 50


def block():
    return bytearray(STEP * MEGABYTE)


def shared():
    area = mmap.mmap(-1, STEP * MEGABYTE)
    for place in range(0, STEP * MEGABYTE, 4096):
        area[place] = 1
    return area


for take in (block, shared):
    held = []
    try:
        while len(held) * STEP < MOST:
            held.append(take())
    except (MemoryError, OSError):
        pass
    if len(held) * STEP * MEGABYTE > 2 * BAIT["memory_bytes"]:
        time.sleep(2)
        escaped(len(held) * STEP, "MB held as", take.__name__)
    held.clear()
print("done", flush=True)
