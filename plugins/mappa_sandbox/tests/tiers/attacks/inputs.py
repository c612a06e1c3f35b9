"""Writes to the files of its task, through the links in its workspace, and puts its own in their place."""

import os
from pathlib import Path

from kit import BAIT, MARK, escaped, must_fail

names = sorted(BAIT["inputs_here"])
for name in names:
    if Path(name).read_text() != "a,b\n1,2\n":
        escaped("an input file reads otherwise", name)
    for flags in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC, os.O_WRONLY | os.O_APPEND):
        must_fail(f"opening {name} with {flags:o}", os.open, name, flags)
    must_fail(f"truncating {name}", os.truncate, name, 0)
    target = os.path.realpath(name)
    must_fail(f"removing {target}", os.unlink, target)
    must_fail(f"replacing {target}", lambda target=target: os.replace("kit.py", target))
    try:  # what lies beside it where it is may be made anew in memory: what is left of it is looked for afterwards
        Path(f"{os.path.dirname(target)}/{MARK}").write_text("x")
    except OSError:
        pass
    must_fail(f"reopening {name}", lambda name=name: os.open(f"/proc/self/fd/{os.open(name, os.O_RDONLY)}", os.O_RDWR))
for name in names:
    os.unlink(name)
    Path(name).write_text("forged")
print("done")
