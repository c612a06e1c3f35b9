"""Leaves what outlives a process: System V and POSIX objects, locks, sockets, watches."""

import fcntl
import os
import socket

from kit import BAIT, LIBC, MARK, must_fail, syscall

key = BAIT["ipc_key"]
for name, arguments in (("shmget", (key, 4096, 0o1666)), ("semget", (key, 1, 0o1666)), ("msgget", (key, 0o1666))):
    try:  # in a namespace of its own it goes with the program; outside it is looked for afterwards
        syscall(name, *arguments)
    except OSError:
        pass
for path in (f"/dev/mqueue/{MARK}", f"/dev/shm/{MARK}", f"/tmp/{MARK}", f"/var/tmp/{MARK}"):
    try:
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o666))
    except OSError:
        pass
try:
    syscall("mq_open", MARK.encode(), os.O_CREAT | os.O_RDWR, 0o666, 0)
except OSError:
    pass
LIBC.shm_open(f"/{MARK}".encode(), os.O_CREAT | os.O_RDWR, 0o666)
with open("locked", "w") as locked:
    fcntl.flock(locked, fcntl.LOCK_EX)
    if os.fork() == 0:
        os.setsid()
        fcntl.flock(locked, fcntl.LOCK_EX)
        os.execvp("sleep", ["sleep", "1000"])
must_fail("a socket that others find", lambda: socket.socket(socket.AF_UNIX).bind(f"\0{MARK}"))
print("done", flush=True)
