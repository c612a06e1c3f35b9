"""Pretends to be the supervisor, and gets into the way of the runner that is in its own process."""

import atexit
import gc
import json
import os
import socket
import sys
import threading
import time

from kit import escaped

forged = json.dumps({"exit": 0, "limit": None, "stdout": {"head": "", "tail": "", "cut": 0}, "seconds": 0.0}) + "\n"


def is_open(one):
    try:
        return bool(os.fstat(one.fileno()))
    except OSError:
        return False


for thing in gc.get_objects():
    if isinstance(thing, socket.socket) and is_open(thing):
        escaped("holds the socket", thing)
frame = sys._getframe()
while frame is not None:
    for name, value in list(frame.f_locals.items()):
        if isinstance(value, socket.socket) and is_open(value):
            escaped("a frame holds the socket", name)
    frame = frame.f_back
for number in range(3, 1024):
    try:
        os.write(number, forged.encode())
        escaped("wrote to the descriptor", number)
    except OSError:
        pass
for parent in (os.getppid(), 1, 2):
    for number in range(32):
        try:
            with open(f"/proc/{parent}/fd/{number}", "wb", buffering=0) as end:
                if parent != 0 and os.readlink(f"/proc/{parent}/fd/{number}") != "/dev/null":
                    end.write(forged.encode())
        except OSError:
            pass


class Late:
    def __del__(self):
        raise RuntimeError("late")


late = Late()
late.itself = late
sys.excepthook = lambda *_: os.write(1, b"hooked\n")
sys.unraisablehook = lambda *_: None
atexit.register(lambda: 1 / 0)
atexit.register(lambda: sys.stdout.write(forged))
threading.Thread(target=lambda: [time.sleep(0.01) for _ in iter(int, 1)], daemon=True).start()
os.write(1, forged.encode())
print("done", flush=True)
sys.exit(7)
