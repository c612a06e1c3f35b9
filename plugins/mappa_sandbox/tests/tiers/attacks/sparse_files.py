"""Leaves files that are long and almost empty, 1 GB of them, and ends before anybody looks."""

import os

for number in range(100):
    descriptor = os.open(f"long-{number}", os.O_CREAT | os.O_WRONLY, 0o600)
    os.write(descriptor, str(number).encode())
    os.truncate(descriptor, 10 << 20)
    os.close(descriptor)
print("done", flush=True)
os._exit(0)
