"""Prints all that a program finds of the state that it starts in; must be the same whoever ran before it."""

import builtins
import gc
import hashlib
import json
import locale
import os
import resource
import signal
import sys
import threading
import warnings

state = {
    "argv": sys.argv,
    "builtins": sorted(dir(builtins)),
    "len": len("abc"),
    "cwd": os.listdir(),
    "descriptors": [number for number in range(64) if os.path.exists(f"/proc/self/fd/{number}")],
    "environment": sorted((k, v) for k, v in os.environ.items() if k not in ("HOME", "TMPDIR")),
    "filters": len(warnings.filters),
    "gc": (gc.isenabled(), gc.get_threshold()),
    "globals": sorted(globals().keys() - {"state"}),
    "handlers": [str(signal.getsignal(number)) for number in sorted(signal.valid_signals())],
    "home": os.listdir(os.environ["HOME"]),
    "join": os.path.join("a", "b"),
    "limits": [resource.getrlimit(number) for number in range(9) if number != resource.RLIMIT_NPROC],
    "locale": locale.setlocale(locale.LC_ALL),
    "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    "meta path": [str(type(finder)) for finder in sys.meta_path],
    "modules": sorted(sys.modules),
    "nice": os.nice(0),
    "path": sys.path,
    "processors": sorted(os.sched_getaffinity(0)),
    "recursion": sys.getrecursionlimit(),
    "session": os.getsid(0) == os.getpid(),
    "threads": threading.active_count(),
    "timer": signal.getitimer(signal.ITIMER_REAL),
    "umask": oct(os.umask(0o022)),
}
if "numpy" in sys.modules:
    state["numpy"] = str(sys.modules["numpy"].array)
text = json.dumps(state, sort_keys=True, default=str)
print(text)
print(hashlib.sha256(text.encode()).hexdigest())
