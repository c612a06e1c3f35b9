"""Leaves what leads elsewhere, for whoever collects the files: links, FIFOs, devices, sockets, and odd folders."""

import os
import stat

from kit import BAIT, call, must_fail, syscall

secret, host = BAIT["secret_files"][0], BAIT["host_files"][0]
os.symlink(secret, "submission.csv")
os.symlink("/etc/passwd", "passwd.csv")
os.symlink(os.path.dirname(secret), "data")
os.symlink("/", "root")
os.symlink("loop", "loop")
os.symlink(".", "self")
os.mkfifo("pipe.csv")
os.mkdir("folder")
os.symlink(secret, "folder/inner.csv")
must_fail("a hard link to a secret", os.link, secret, "hard.csv")
must_fail("a hard link to a file that all may write", os.link, host, "hard2.csv")
must_fail("a hard link through a symbolic one", call, "linkat", -100, b"submission.csv", -100, b"hard3.csv", 0x400)
must_fail("a block device", os.mknod, "disk", stat.S_IFBLK | 0o666, os.makedev(8, 0))
must_fail("the device of all memory", os.mknod, "memory", stat.S_IFCHR | 0o666, os.makedev(1, 1))
must_fail("a device by a raw call", syscall, "mknodat", -100, b"raw", stat.S_IFCHR | 0o666, os.makedev(1, 1))
with open("honest.csv", "w") as honest:
    honest.write("1")
print("done")
