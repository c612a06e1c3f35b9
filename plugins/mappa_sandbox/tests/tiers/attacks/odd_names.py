"""Leaves names and folders that whoever lists them may stumble over."""

import os

from kit import escaped

for name in (
    "a\nb",
    "a\tb",
    "\x1b[31mred",
    "-rf",
    "~",
    "$(id)",
    "`id`",
    "'",
    '"',
    "\\",
    " ",
    "x" * 255,
    "ü" * 127,
    "\u202e",
):
    with open(name, "w") as file:
        file.write("x")
for raw in (b"\xff\xfe", b"a\x80.csv", b"\xed\xa0\x80"):
    os.close(os.open(raw, os.O_CREAT | os.O_WRONLY))
here = os.getcwd()
depth = 0
try:
    while depth < 3000:
        os.mkdir("d" * 20)
        os.chdir("d" * 20)
        depth += 1
except OSError:
    pass
try:
    with open("bottom.txt", "w") as file:
        file.write("x")
except OSError:
    pass
os.chdir(here)
if depth < 10:
    escaped("the folder could not be made: this attack does not work any more", depth)
print("done", flush=True)
