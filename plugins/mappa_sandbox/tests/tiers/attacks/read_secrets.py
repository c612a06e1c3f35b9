"""Reads what is not its own: the environment, files by many spellings, /proc, other workspaces."""

import os
import subprocess

from kit import BAIT, MARK, must_not_tell, others, read

must_not_tell("own environment", lambda: dict(os.environ))
must_not_tell("environment of a child", lambda: subprocess.run(["env"], capture_output=True).stdout)
must_not_tell("own /proc environ", read, "/proc/self/environ")
must_not_tell("own /proc environ as it was", read, f"/proc/{os.getpid()}/task/{os.getpid()}/environ")

here = os.getcwd()
for path in BAIT["secret_files"]:
    up = "../" * 40 + path.lstrip("/")
    for spelling in (path, up, f"/proc/self/root{path}", f"/proc/self/cwd/{up}", f"/proc/1/root{path}", f"//{path}//."):
        must_not_tell(spelling, read, spelling)
    must_not_tell(f"cat {path}", lambda path=path: subprocess.run(["cat", path], capture_output=True).stdout)

    def by_link(path=path):
        os.symlink(path, f"{MARK}-link")
        try:
            return read(f"{MARK}-link")
        finally:
            os.unlink(f"{MARK}-link")

    def by_folder(path=path):
        folder = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
        return os.read(os.open(path.lstrip("/"), os.O_RDONLY, dir_fd=folder), 4096)

    def by_path_descriptor(path=path):
        handle = os.open(path, os.O_PATH)
        return read(f"/proc/self/fd/{handle}")

    def by_walking_up(path=path):
        os.chdir("/")
        try:
            return read(path.lstrip("/"))
        finally:
            os.chdir(here)

    for way in (by_link, by_folder, by_path_descriptor, by_walking_up):
        must_not_tell(f"{path} {way.__name__}", way)

for folder in BAIT["private_folders"]:
    must_not_tell(f"listing {folder}", lambda folder=folder: [read(f"{folder}/{name}") for name in os.listdir(folder)])

for pid in others():
    for name in ("environ", "cmdline", "maps", "stack", "auxv", "mountinfo", "status", "comm"):
        must_not_tell(f"/proc/{pid}/{name}", read, f"/proc/{pid}/{name}")
    for path in BAIT["secret_files"]:
        must_not_tell(f"/proc/{pid}/root", read, f"/proc/{pid}/root{path}")
        must_not_tell(f"/proc/{pid}/cwd", read, f"/proc/{pid}/cwd/{'../' * 20}{path.lstrip('/')}")

must_not_tell("ps", lambda: subprocess.run(["ps", "axeww"], capture_output=True).stdout)

# Whatever can be reached at all from the usual places, to a bounded depth and number.
seen = 0
for top in ("/home", "/root", "/tmp", "/var", "/run", "/mnt", "/srv", "/opt", "/media", "/dev/shm", "/etc", "/data"):
    for folder, folders, names in os.walk(top):
        folders[:] = folders[:50] if folder.count("/") < 4 else []
        for name in names[:200]:
            seen += 1
            if seen < 3000 and os.path.isfile(os.path.join(folder, name)):
                must_not_tell(os.path.join(folder, name), read, os.path.join(folder, name), 65536)

for path in ("/etc/shadow", "/etc/gshadow", "/etc/sudoers", "/root/.bashrc", "/root/.bash_history"):
    try:
        print("ESCAPED read", path, len(read(path)))
    except OSError:
        pass
print("done")
