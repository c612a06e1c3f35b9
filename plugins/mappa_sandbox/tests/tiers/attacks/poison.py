"""Spoils everything that a program after it, or beside it, might share with it, and lives on for a while."""

import builtins
import gc
import json
import locale
import os
import random
import resource
import signal
import sys
import time
import warnings
from pathlib import Path

import kit

if "numpy" in sys.modules:
    import numpy.random

builtins.len = lambda *_: 666
builtins.POISON = True
json.dumps = lambda *_: "poison"
os.environ["POISON"] = "1"
os.putenv("POISON", "1")
os.path.join = lambda *_: "poison"
sys.path[:] = ["/poison"]
sys.modules["math"] = sys.modules["kit"]
sys.modules["poison"] = sys.modules["kit"]
sys.argv[:] = ["poison"]
sys.meta_path.clear()
warnings.simplefilter("error")
random.seed(1)
gc.disable()
locale.setlocale(locale.LC_ALL, "C")
for number in range(1, signal.NSIG):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
signal.setitimer(signal.ITIMER_REAL, 1000)
os.umask(0o777)
os.chdir("/")
os.nice(5)
for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_STACK):
    resource.setrlimit(kind, (64, 64) if kind == resource.RLIMIT_NOFILE else (1 << 20, 1 << 20))
if "numpy" in sys.modules:
    numpy.array = None
    numpy.random.seed(1)
for folder in {os.path.dirname(sys.modules["re"].__file__), *kit.BAIT["open_folders"], os.environ["HOME"]}:
    for name in ("sitecustomize.py", "usercustomize.py", ".pythonrc.py", "random.py"):
        try:
            Path(f"{folder}/{name}").write_text("POISON = True")
        except OSError:
            pass
sys.stdout.write("done\n")
sys.setrecursionlimit(50)
sys.stdout.flush()
time.sleep(kit.BAIT["seconds"])
