"""What /proc tells of processes."""

import mmap
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mappa_sandbox.isolation import processes


@pytest.fixture
def started():
    """Start a program that prints a line when it is ready; it ends with the test."""
    running = []

    def start(code: str) -> subprocess.Popen:
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        running.append(process)
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in running:
        process.kill()
        process.wait()
        process.stdout.close()


def test_descendants_are_found_through_generations(started):
    code = (
        "import os, time\n"
        "if os.fork() == 0:\n    if os.fork() == 0:\n        print('ready', flush=True)\n    time.sleep(100)\n"
        "time.sleep(100)"
    )
    process = started(code)
    below = processes.descendants_of(process.pid)
    assert len(below) == 2 and set(below) <= set(processes.list_processes())
    assert processes.children_of(process.pid) == below[:1]
    assert process.pid in processes.children_of(os.getpid())
    for pid in below:
        processes.kill(pid)


def test_a_child_of_a_thread_counts(started):
    code = (
        "import subprocess, threading, time\n"
        "threading.Thread(target=lambda: (subprocess.Popen(['sleep', '100']), time.sleep(100)), daemon=True).start()\n"
        "time.sleep(0.3)\nprint('ready', flush=True)\ntime.sleep(100)"
    )
    below = processes.descendants_of(started(code).pid)
    assert len(below) == 1
    processes.kill(below[0])


def test_memory_threads_and_time_are_those_of_the_process(started):
    code = (
        "import threading, time\nheld = bytearray(b'x') * (64 << 20)\n"
        "[threading.Thread(target=time.sleep, args=(100,), daemon=True).start() for _ in range(3)]\n"
        "while time.process_time() < 0.3: pass\nprint('ready', flush=True)\ntime.sleep(100)"
    )
    seen = processes.read_process_usage(started(code).pid)
    assert seen.threads == 4
    assert 64 << 20 <= seen.memory < 128 << 20
    assert 0.25 <= seen.cpu_s < 10
    fair = processes.proportional_memory(seen.pid)
    assert 64 << 20 <= fair <= seen.memory


def test_memory_that_forks_share_is_counted_in_parts(started):
    code = (
        "import os, time\nheld = bytearray(b'x') * (64 << 20)\n"
        "for _ in range(3):\n    if os.fork() == 0:\n        time.sleep(100)\n"
        "print('ready', flush=True)\ntime.sleep(100)"
    )
    process = started(code)
    pids = [process.pid, *processes.descendants_of(process.pid)]
    shown = sum(processes.read_process_usage(pid).memory for pid in pids)
    fair = sum(processes.proportional_memory(pid) for pid in pids)
    assert shown > 256 << 20 and fair < 128 << 20
    for pid in pids[1:]:
        processes.kill(pid)


def test_a_process_that_is_gone_is_none():
    process = subprocess.Popen(["true"])
    process.wait()
    assert processes.read_process_usage(process.pid) is None
    assert processes.proportional_memory(process.pid) is None
    assert processes.process_state(process.pid) == ""
    assert processes.children_of(process.pid) == []
    processes.kill(process.pid)


def held(folder) -> processes.HeldResources:
    """What this process keeps beside what is seen."""
    found = processes.HeldResources({}, {})
    processes.add_descriptors(os.getpid(), folder.stat().st_dev, found)
    processes.add_mappings(os.getpid(), (str(folder),), found, 0)
    return found


def test_files_without_a_name_are_seen_open_and_mapped(tmp_path):
    assert sum(held(tmp_path).files.values()) == 0
    with (tmp_path / "open").open("wb") as file:
        file.write(bytes(1 << 20))
        file.flush()
        assert sum(held(tmp_path).files.values()) == 0
        (tmp_path / "open").unlink()
        assert sum(held(tmp_path).files.values()) == 1 << 20
    with (tmp_path / "mapped").open("w+b") as file:
        file.truncate(1 << 21)
        mapped = mmap.mmap(file.fileno(), 1 << 21)
    (tmp_path / "mapped").unlink()
    # `mmap` keeps a descriptor of its own: it is counted once.
    assert sum(held(tmp_path).files.values()) == 1 << 21
    mapped.close()
    assert sum(held(tmp_path).files.values()) == 0


def test_memory_of_the_kernel_is_seen(tmp_path):
    def kept() -> int:
        return sum(held(tmp_path).memory.values())

    before = kept()
    shared = mmap.mmap(-1, 1 << 22)
    shared.write(bytes(1 << 22))
    shared.madvise(mmap.MADV_DONTNEED)
    assert kept() - before == 1 << 22
    shared.close()
    one, other = socket.socketpair()
    assert kept() - before == 2 * processes.socket_bytes()
    one.close()
    other.close()
    ends = os.pipe()
    assert kept() - before == processes.PIPE_BYTES
    for end in ends:
        os.close(end)
    assert kept() == before


def test_descendants_that_left_the_session_are_killed_too():
    program = (
        "import os, subprocess, sys, time\n"
        "from mappa_sandbox.isolation import kernel, processes\n"
        "kernel.become_subreaper()\n"
        "for _ in range(3):\n"
        "    subprocess.Popen(['setsid', 'sh', '-c', 'sleep 100 & sleep 100'])\n"
        "time.sleep(0.3)\n"
        "before = processes.descendants_of(os.getpid())\n"
        "processes.kill_descendants()\n"
        "print(len(before) >= 6, processes.descendants_of(os.getpid()))"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=root)
    assert done.stdout == "True []\n", done.stderr


def test_time_of_children_that_ended_is_counted(started):
    code = (
        "import subprocess, sys, time\n"
        "subprocess.run([sys.executable, '-c', 'import time\\nwhile time.process_time() < 0.5: pass'])\n"
        "print('ready', flush=True)\ntime.sleep(100)"
    )
    started_at = time.monotonic()
    assert 0.45 <= processes.read_process_usage(started(code).pid).cpu_s <= time.monotonic() - started_at + 1


def test_a_process_whose_first_thread_has_ended_is_seen_in_full(started, tmp_path):
    code = (
        "import ctypes, os, socket, threading, time\n"
        "kept = [bytearray(b'x') * (32 << 20), socket.socketpair()]\n"
        f"file = os.open({str(tmp_path / 'f')!r}, os.O_CREAT | os.O_RDWR)\n"
        f"os.unlink({str(tmp_path / 'f')!r})\nos.write(file, bytes(1 << 20))\n"
        "def go_on():\n    time.sleep(0.3)\n    print('ready', flush=True)\n    time.sleep(100)\n"
        "threading.Thread(target=go_on).start()\n"
        "ctypes.CDLL(None).syscall({'x86_64': 60, 'aarch64': 93}[os.uname().machine], 0)\n"
    )
    pid = started(code).pid
    assert processes.process_state(pid) == "Z"
    assert processes.read_process_usage(pid).memory > 32 << 20
    assert processes.proportional_memory(pid) > 32 << 20
    found = processes.HeldResources({}, {})
    processes.add_descriptors(pid, tmp_path.stat().st_dev, found)
    assert sum(found.files.values()) == 1 << 20
    assert sum(found.memory.values()) >= 2 * processes.socket_bytes()


def test_a_deleted_file_counts_in_full_where_one_page_of_it_is_mapped(started, tmp_path):
    code = (
        "import mmap, os, sys, time\n"
        f"file = os.open({str(tmp_path / 'f')!r}, os.O_CREAT | os.O_RDWR)\n"
        f"os.unlink({str(tmp_path / 'f')!r})\nos.write(file, bytes(3 << 20))\n"
        "kept = mmap.mmap(file, 4096)\n"
        "os.closerange(3, 50)\nprint('ready', flush=True)\ntime.sleep(100)\n"
    )
    pid, found = started(code).pid, processes.HeldResources({}, {})
    processes.add_mappings(pid, (str(tmp_path),), found, 5 << 20)
    assert sum(found.files.values()) == (3 << 20 if os.geteuid() == 0 else 5 << 20)
