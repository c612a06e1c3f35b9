"""Spins in many processes, which together use far more time of the processors than one may; ignores what says so."""

import os
import signal
import time

from kit import BAIT, escaped

signal.signal(signal.SIGXCPU, signal.SIG_IGN)
ready, tell = os.pipe()
for _ in range(8):
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        told = 0.0
        while True:
            if time.process_time() - told > 0.25:
                told += 0.25
                os.write(tell, b"x")
used = 0.0
while used < 4 * BAIT["cpu_s"]:
    used += 0.25 * len(os.read(ready, 100))
escaped(used, "s of CPU time")
print("done", flush=True)
os._exit(0)
