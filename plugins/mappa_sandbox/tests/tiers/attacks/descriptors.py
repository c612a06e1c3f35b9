"""Looks for descriptors that it was not meant to have, before anything else is opened."""

import os
import stat

inherited = []
for number in range(3, 4096):
    try:
        inherited.append((number, oct(os.fstat(number).st_mode)))
    except OSError:
        pass

from kit import escaped, must_fail  # noqa: E402 - importing opens files

for number, mode in inherited:
    escaped("inherited the descriptor", number, mode)
if os.read(0, 10) != b"":
    escaped("read something from stdin")
if os.isatty(0) or os.isatty(1) or os.isatty(2):
    escaped("has a terminal")
for number in (0, 1, 2):
    mode = os.fstat(number).st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)):
        escaped("standard stream", number, "is", oct(mode))
# What is read from its own output would be taken from the supervisor; it is its own in any case.
must_fail("a controlling terminal", os.open, "/dev/tty", os.O_RDWR)
print("done")
