"""Memory in huge pages, so that a fork copies fewer entries of page tables.

A fork copies one entry for each page of 4 KiB, and its end drops as many references: for 120 MiB of imported modules
this takes longer than most programs. In pages of 2 MiB it is one entry for 512. A program that writes to one copies
4 KiB of it, as before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from mappa_sandbox.isolation import kernel

HUGE_PAGE_BYTES = 2 << 20


def collapse_memory() -> None:
    """Move this process's own memory into huge pages, as far as the kernel can: from Linux 6.1 on."""
    for start, end in _writable_memory():
        # Whole huge pages alone: the start rounded up, the end rounded down.
        first, last = -(-start // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES, end // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES
        if first < last:
            with contextlib.suppress(OSError):  # parts of it that are not in use stay as they are
                kernel.collapse_pages(first, last - first)


def _writable_memory() -> Iterator[tuple[int, int]]:
    """First and last address of each mapping of this process that is writable and of no file."""
    with open("/proc/self/maps", "rb") as maps:
        lines = maps.read().splitlines()
    for line in lines:
        extent, mode, _, _, inode, *path = line.split(maxsplit=5)
        if mode == b"rw-p" and inode == b"0" and path in ([], [b"[heap]"]):
            start, end = (int(address, 16) for address in extent.split(b"-"))
            yield start, end
