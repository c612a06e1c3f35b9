"""Processes that live for a moment and are born again: whoever kills those it sees never sees the next."""

import os
import signal
import time

from kit import MARK

LIVES = 20_000
for _ in range(4):
    try:
        child = os.fork()
    except BlockingIOError:  # where the machine is busy, those before it fill the limit of processes
        break
    if child == 0:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        for _ in range(LIVES):
            if os.fork():
                os._exit(0)
        open(MARK, "w").close()
        os._exit(0)
time.sleep(0.2)
print("done", flush=True)
