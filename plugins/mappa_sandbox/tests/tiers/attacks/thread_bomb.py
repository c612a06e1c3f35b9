"""Starts far more threads than it may; at most 300."""

import threading
import time

from kit import escaped

threading.stack_size(64 << 10)
alive = 0
for _ in range(300):
    try:
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    except (RuntimeError, MemoryError):
        break
    alive += 1
time.sleep(3)
if alive >= 100:
    escaped(alive, "threads at once")
print("done", flush=True)
