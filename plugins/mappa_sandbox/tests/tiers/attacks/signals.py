"""Kills and stops whoever it can: parents, neighbours, everybody."""

import os
import signal

from kit import BAIT, escaped, must_fail, syscall

safe = True
for pid in {*BAIT["processes"], os.getppid()} - {0}:
    safe &= must_fail(f"signalling {pid}", os.kill, pid, 0)
    safe &= must_fail(
        f"a signal to {pid} by its handle", lambda pid=pid: syscall("pidfd_send_signal", os.pidfd_open(pid), 0, 0, 0)
    )
for group in BAIT["groups"]:
    safe &= must_fail(f"signalling the group {group}", os.killpg, group, 0)
if safe:  # what follows may only be tried where nobody outside can be reached
    for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGKILL):
        for pid in (1, 2, os.getppid()):
            if pid not in (0, os.getpid()):
                try:
                    os.kill(pid, number)
                except OSError:
                    pass
    for number in (signal.SIGCONT, signal.SIGTERM, signal.SIGSTOP, signal.SIGKILL):
        try:
            os.kill(-1, number)
        except OSError:
            pass
else:
    escaped("signals reach others")
print("done", flush=True)
