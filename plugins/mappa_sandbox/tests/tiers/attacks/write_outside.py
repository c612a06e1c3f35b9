"""Writes everywhere but into its workspace: new files, old files, folders, links, the interpreter's own places."""

import os
import sys
import sysconfig
from pathlib import Path

from kit import BAIT, MARK, must_fail

paths = sysconfig.get_paths()
folders = {
    *("/", "/etc", "/usr", "/usr/lib", "/usr/local/bin", "/bin", "/lib", "/root", "/home", "/opt", "/srv", "/var"),
    *("/var/tmp", "/run", "/run/lock", "/proc", "/proc/self", "/sys", "/sys/fs/cgroup", "/mnt", "/dev/mqueue"),
    *(sys.prefix, sys.base_prefix, paths["stdlib"], paths["purelib"], paths["platlib"], paths["scripts"]),
    *(os.path.dirname(os.__file__) + "/__pycache__", paths["purelib"] + "/numpy", os.path.dirname(sys.executable)),
    *(entry for entry in sys.path if os.path.isabs(entry)),
    *BAIT["open_folders"],
    *BAIT["private_folders"],
}
# Where these are a program's own, they lie in memory and go with it: what is left of them is looked for afterwards.
folders -= {os.getcwd(), os.environ["HOME"], os.environ["TMPDIR"], "/tmp", "/dev/shm"}
if os.environ["HOME"] == "/tmp":  # and so are folders that were made there on the way to an interpreter below /tmp
    memory = os.stat("/tmp").st_dev
    folders = {folder for folder in folders if not os.path.isdir(folder) or os.stat(folder).st_dev != memory}
for folder in sorted(folders):
    new = f"{folder}/{MARK}"
    must_fail(f"writing {new}", lambda new=new: Path(new).write_text("x"))
    must_fail(f"making the folder {new}-d", os.mkdir, f"{new}-d")
    must_fail(f"making the link {new}-l", os.symlink, "/etc/passwd", f"{new}-l")
    must_fail(f"making the FIFO {new}-p", os.mkfifo, f"{new}-p")
    must_fail(f"a nameless file in {folder}", os.open, folder, os.O_TMPFILE | os.O_RDWR, 0o600)
for folder in ("/tmp", "/dev/shm", "/dev", os.path.dirname(os.getcwd())):
    for suffix, make in (("", lambda path: Path(path).write_text("x")), ("-d", os.mkdir)):
        try:
            make(f"{folder}/{MARK}{suffix}")
        except OSError:
            pass

for path in [*BAIT["host_files"], os.__file__, sys.executable, "/etc/passwd", "/etc/hosts", "/etc/resolv.conf"]:
    for flags in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_APPEND, os.O_WRONLY | os.O_CREAT):
        must_fail(f"opening {path} with {flags:o}", os.open, path, flags)
    must_fail(f"reopening {path}", lambda path=path: os.open(f"/proc/self/fd/{os.open(path, os.O_RDONLY)}", os.O_RDWR))
for path in BAIT["host_files"]:
    must_fail(f"truncating {path}", os.truncate, path, 0)
    must_fail(f"removing {path}", os.unlink, path)
    must_fail(f"renaming {path}", os.rename, path, f"{path}.{MARK}")
    must_fail(f"moving {path} here", os.rename, path, "taken")
    must_fail(f"linking {path} here", os.link, path, "linked")

    def replace(path=path):
        Path("mine").write_text("x")
        os.replace("mine", path)

    must_fail(f"replacing {path}", replace)
for folder in BAIT["open_folders"]:
    must_fail(f"removing {folder}", os.rmdir, folder)
    must_fail(f"renaming {folder}", os.rename, folder, f"{folder}-{MARK}")
    Path("out").write_text("x")
    must_fail(f"moving a file to {folder}", os.rename, "out", f"{folder}/{MARK}-moved")
    must_fail(f"linking a file to {folder}", os.link, "out", f"{folder}/{MARK}-linked")
print("done")
