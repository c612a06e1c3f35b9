"""Two programs that run at once, and one that follows them, look for each other wherever a word can be left."""

import ctypes
import glob
import os
import socket
import time

from kit import BAIT, LIBC, MARK, escaped, read, syscall

mine = BAIT["name"]
PLACES = ("/tmp", "/dev/shm", "/var/tmp", "/run", "/run/lock", "/dev", "/dev/mqueue", os.environ["HOME"])
PLACES += (
    os.environ["TMPDIR"],
    os.path.dirname(os.getcwd()),
    os.path.dirname(os.environ["HOME"]),
    *BAIT["open_folders"],
)
held = []


def leave():
    for place in PLACES:
        try:
            with open(f"{place}/{MARK}-{mine}", "w") as file:
                file.write(mine)
        except OSError:
            pass
    try:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(f"\0{MARK}-{mine}")
        listener.listen()
        held.append(listener)
    except OSError:
        pass
    try:
        LIBC.shmat.restype = ctypes.c_void_p
        place = LIBC.shmat(syscall("shmget", BAIT["ipc_key"], 4096, 0o1666), None, 0)
        if place not in (None, 2**64 - 1):
            known = ctypes.string_at(place, 8)
            if known not in (bytes(8), mine.encode().ljust(8)[:8]):
                escaped("found", known, "in shared memory")
            ctypes.memmove(place, mine.encode().ljust(8), 8)
    except OSError:
        pass


def look():
    for place in PLACES:
        for path in glob.glob(f"{place}/{MARK}-*"):
            if not path.endswith(f"-{mine}"):
                escaped("found", path)
    for other in {"one", "two", "three"} - {mine}:
        try:
            with socket.socket(socket.AF_UNIX) as caller:
                caller.connect(f"\0{MARK}-{other}")
            escaped("called", other)
        except OSError:
            pass
    try:
        sockets = read("/proc/net/unix")
    except OSError:
        return
    if any(f"@{MARK}-{other}".encode() in sockets for other in {"one", "two", "three"} - {mine}):
        escaped("sees the socket of another")


for _ in range(BAIT["rounds"]):
    leave()
    look()
    time.sleep(0.1)
print("done", flush=True)
