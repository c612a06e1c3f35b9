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
    # Its outputs are ends of pairs of sockets, which cannot be opened again to read what it wrote.
    if not (stat.S_ISCHR(mode) if number == 0 else stat.S_ISSOCK(mode)):
        escaped("standard stream", number, "is", oct(mode))
    if number:
        must_fail("reading its own output", os.open, f"/proc/self/fd/{number}", os.O_RDONLY)
must_fail("a controlling terminal", os.open, "/dev/tty", os.O_RDWR)
print("done")
