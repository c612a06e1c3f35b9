"""Ignores every signal that can be ignored and ends for none."""

import signal
import sys
import threading
import time

for number in range(1, signal.NSIG):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
sys.settrace(lambda *_: None)
threading.Thread(target=time.sleep, args=(1000,)).start()
print("done", flush=True)
while True:
    try:
        time.sleep(1000)
    except BaseException:
        continue
