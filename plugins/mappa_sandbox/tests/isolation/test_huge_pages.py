import mmap
import platform
from pathlib import Path

import pytest

from mappa_sandbox.isolation.huge_pages import HUGE_PAGE_BYTES, collapse_memory


def huge_bytes() -> int:
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("AnonHugePages:"))


def can_collapse() -> bool:
    return (
        tuple(map(int, platform.release().split(".")[:2])) >= (6, 1)
        and Path("/sys/kernel/mm/transparent_hugepage").exists()
    )


@pytest.mark.skipif(not can_collapse(), reason="needs Linux 6.1 with huge pages")
def test_memory_moves_into_huge_pages_and_keeps_its_content(in_child):
    def child():
        memory = mmap.mmap(-1, 8 * HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE)
        for place in range(0, len(memory), mmap.PAGESIZE):
            memory[place : place + 4] = (place // mmap.PAGESIZE).to_bytes(4, "little")
        before = huge_bytes()
        collapse_memory()
        numbers = [
            int.from_bytes(memory[place : place + 4], "little") for place in range(0, len(memory), mmap.PAGESIZE)
        ]
        return huge_bytes() - before, numbers == list(range(len(numbers)))

    gained, kept = in_child(child)
    assert kept
    assert gained >= 6 * HUGE_PAGE_BYTES
