"""Destroys, moves and replaces its own workspace."""

import os
import shutil

from kit import BAIT, MARK, must_fail

here = os.getcwd()
must_fail("moving its workspace", os.rename, here, f"{here}-{MARK}")
must_fail("moving its workspace away", os.rename, here, f"/tmp/{MARK}-moved")
must_fail("removing its workspace", os.rmdir, here)
must_fail("putting a link in its place", lambda: (os.rmdir(here), os.symlink(BAIT["private_folders"][0], here)))
must_fail("removing what is above", os.rmdir, os.path.dirname(here) if here != "/workspace" else "/usr")
shutil.rmtree(here, ignore_errors=True)
if os.path.isdir(here):
    os.chdir(here)
    os.mkdir("locked")
    with open("locked/file.txt", "w") as file:
        file.write("x")
    with open("unreadable.txt", "w") as file:
        file.write("x")
    os.chmod("unreadable.txt", 0)
    os.chmod("locked", 0)
    os.chmod(here, 0)
print("done", flush=True)
