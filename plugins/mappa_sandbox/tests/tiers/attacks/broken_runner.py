"""Takes the runner in its own process apart; what it gains is that it is killed at the wall limit."""

import atexit
import builtins
import os
import signal
import sys
import threading

print("done", flush=True)
os._exit = lambda *_: None
os.kill = lambda *_: None
signal.signal = lambda *_: None
threading._shutdown = lambda: (_ for _ in ()).throw(SystemExit(0))
atexit._run_exitfuncs = None
for name in list(sys.modules):
    if name not in ("builtins", "sys"):
        del sys.modules[name]
builtins.__import__ = None
sys.stdout = sys.stderr = None
frame = sys._getframe()
while frame is not None:
    frame.f_trace = lambda *_: None
    for key in list(frame.f_globals):
        if key not in ("frame", "sys", "key", "list", "__builtins__"):
            frame.f_globals.pop(key, None)
    frame = frame.f_back
