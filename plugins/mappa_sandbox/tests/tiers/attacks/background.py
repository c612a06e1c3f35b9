"""Leaves processes behind in every way it knows, some of them holding its output open."""

import atexit
import os
import signal
import subprocess
import sys
import threading
import time

from kit import MARK

SLEEP = [sys.executable, "-S", "-c", "import time; time.sleep(1000)", MARK]
subprocess.Popen(SLEEP)
subprocess.Popen(SLEEP, start_new_session=True)
subprocess.Popen(SLEEP, process_group=0)
subprocess.Popen(["sh", "-c", f"trap '' TERM HUP INT QUIT; sleep 1000; sleep 1000; : {MARK}"], start_new_session=True)
os.system(f"sh -c 'sleep 1000; : {MARK}' & setsid nohup sh -c 'sleep 1000; : {MARK}' >/dev/null 2>&1 &")
os.kill(subprocess.Popen(SLEEP).pid, signal.SIGSTOP)


def daemon(keep_output):
    """Fork twice, out of the session, away from the folder."""
    if os.fork():
        return
    os.setsid()
    if os.fork() == 0:
        if not keep_output:
            for number in range(3):
                os.close(number)
        for number in range(1, signal.NSIG):
            try:
                signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError):
                pass
        while True:
            time.sleep(0.01)
    os._exit(0)


daemon(keep_output=True)
daemon(keep_output=False)


def at_exit():
    daemon(keep_output=True)
    subprocess.Popen(SLEEP, start_new_session=True)


class Late:
    def __del__(self):
        at_exit()


late = Late()
atexit.register(at_exit)
threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
time.sleep(0.3)
print("done", flush=True)
