"""Writes 60 MB on both streams, without an end of line, from itself and from a child, and closes one."""

import os
import subprocess
import sys
import threading

from kit import MEGABYTE

CHUNK = b"x" * MEGABYTE


def flood(descriptor):
    for _ in range(30):
        left = memoryview(CHUNK)
        while left:
            left = left[os.write(descriptor, left) :]


threads = [threading.Thread(target=flood, args=(descriptor,)) for descriptor in (1, 2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
subprocess.run([sys.executable, "-S", "-c", "import os\nfor _ in range(30): os.write(2, b'y' * (1 << 20))"])
os.close(2)
print("\ndone", flush=True)
