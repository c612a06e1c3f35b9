"""Reads what is hidden among the interpreter's packages, by every spelling, and by importing around it."""

import glob
import importlib.resources
import os
import sys

from kit import BAIT, MARK, must_fail, read

for path in BAIT["hidden"]:
    folder, name = os.path.split(path)
    spellings = [
        path,
        f"{folder}/./{name}",
        f"{folder}/../{os.path.basename(folder)}/{name}",
        f"/proc/self/root{path}",
        f"/proc/{os.getpid()}/root{path}",
        f"/proc/self/cwd/{'../' * 30}{path.lstrip('/')}",
        path.replace("/lib/", "/lib64/"),
        path.replace("/lib64/", "/lib/"),
        path.upper(),
    ]
    for spelling in spellings:
        must_fail(f"reading {spelling}", lambda spelling=spelling: read(spelling) or 1 / 0)
        for name in glob.glob(f"{spelling}/*"):
            must_fail(f"reading {name}", lambda name=name: read(name) or 1 / 0)
        if not BAIT["names_show"]:
            must_fail(f"listing {spelling}", lambda spelling=spelling: os.listdir(spelling)[0])
    for link, target in ((f"{MARK}-h", path), (f"{MARK}-f", folder)):
        if not os.path.lexists(link):
            os.symlink(target, link)
    must_fail(f"by a link to {path}", lambda: read(f"{MARK}-h") or 1 / 0)
    must_fail(f"by a link to its folder {path}", lambda name=name: read(f"{MARK}-f/{name}") or 1 / 0)
    os.unlink(f"{MARK}-h")
    os.unlink(f"{MARK}-f")

    def by_descriptor(folder=folder, name=name):
        parent = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        return os.read(os.open(name, os.O_RDONLY, dir_fd=parent), 100) or 1 / 0

    def by_nameless(path=path):
        return read(f"/proc/self/fd/{os.open(path, os.O_PATH)}") or 1 / 0

    def made_readable(path=path):
        os.chmod(path, 0o777)
        return read(path) or 1 / 0

    def put_away(path=path):
        os.rename(path, f"{path}.{MARK}")
        return True

    for way in (by_descriptor, by_nameless, made_readable, put_away):
        must_fail(f"{path} {way.__name__}", way)
    must_fail(f"a hard link to {path}", os.link, path, f"{MARK}-hard")
    must_fail(f"running {path}", lambda path=path: os.execv(path, [path]))
must_fail("as a resource", lambda: importlib.resources.files("numpy").joinpath("testing/__init__.py").read_text())
# A hidden folder may pass for a package without a file, in which nothing is.
must_fail("importing it", lambda: __import__("numpy.testing").testing.assert_equal)
must_fail("what an import left", lambda: sys.modules["numpy.testing"].__file__.lower())
import numpy  # noqa: E402 - what lies around it still works

print(numpy.arange(4).sum())
print("done")
