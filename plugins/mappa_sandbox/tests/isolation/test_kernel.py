import ctypes
import errno
import os
import signal

import pytest

from mappa_sandbox.isolation import kernel


def test_an_error_of_the_kernel_is_an_oserror_with_its_number():
    with pytest.raises(OSError, match=r"prctl\(9999\): Invalid argument") as caught:
        kernel.prctl(9999)
    assert caught.value.errno == errno.EINVAL
    with pytest.raises(OSError, match="system call 100000") as caught:
        kernel.syscall(100000)
    assert caught.value.errno == errno.ENOSYS


def test_a_raw_call_takes_numbers_buffers_and_nothing():
    name = ctypes.create_string_buffer(390)
    kernel.syscall({"x86_64": 63, "aarch64": 160}[os.uname().machine], name)
    assert name.value == os.uname().sysname.encode()


def test_no_new_privileges_is_seen_by_the_kernel(in_child):
    def child():
        kernel.no_new_privileges()
        return open("/proc/self/status").read()

    assert "NoNewPrivs:\t1" in in_child(child)


def test_a_process_dies_with_its_parent_and_orphans_come_to_the_subreaper(in_child):
    def subreaper():
        kernel.become_subreaper()
        readable, writable = os.pipe()
        parent = os.fork()
        if parent == 0:
            if os.fork() == 0:
                kernel.die_with_parent(signal.SIGKILL)
                os.write(writable, b"armed")
                signal.pause()
            os.read(readable, 5)
            os._exit(0)
        os.waitpid(parent, 0)
        return os.waitstatus_to_exitcode(os.waitpid(-1, 0)[1])

    assert in_child(subreaper) == -signal.SIGKILL


def test_a_process_that_changed_its_user_gets_its_own_files_in_proc_back(in_child, stranger):
    def child():
        os.setresuid(stranger, stranger, stranger)
        before = os.stat("/proc/self/environ").st_uid
        kernel.set_dumpable()
        return before, os.stat("/proc/self/environ").st_uid

    assert in_child(child) == (0, stranger)


def test_namespaces_of_another_process_can_be_entered(in_child, stranger):
    def child():
        pid = os.fork()
        if pid == 0:
            kernel.check_result(kernel.LIBC.unshare(kernel.CLONE_NEWUTS | kernel.CLONE_NEWIPC), "unshare")
            os.kill(os.getpid(), signal.SIGSTOP)
        os.waitpid(pid, os.WUNTRACED)
        before = os.readlink("/proc/self/ns/uts")
        kernel.enter_namespaces(os.pidfd_open(pid), kernel.CLONE_NEWUTS | kernel.CLONE_NEWIPC)
        same = [
            os.readlink(f"/proc/self/ns/{kind}") == os.readlink(f"/proc/{pid}/ns/{kind}") for kind in ("uts", "ipc")
        ]
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return same, before != os.readlink("/proc/self/ns/uts")

    assert in_child(child) == ([True, True], True)


def test_namespaces_of_nobody_cannot_be_entered(in_child):
    def child():
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        kernel.enter_namespaces(os.pidfd_open(pid), kernel.CLONE_NEWUTS)

    with pytest.raises(ProcessLookupError):
        in_child(child)


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user has no mounts of its own")
def test_a_copy_of_a_shared_mount_is_not_shared(in_child, tmp_path):
    source, place = tmp_path / "source", tmp_path / "place"
    source.mkdir()
    place.mkdir()
    shared, private, below_too = 1 << 20, 1 << 18, 1 << 14

    def change_all(kind):
        kernel.check_result(kernel.LIBC.mount(None, b"/", None, ctypes.c_ulong(kind | below_too), None), "mount")

    def child():
        kernel.check_result(kernel.LIBC.unshare(kernel.CLONE_NEWNS), "unshare")
        change_all(shared)
        mount = kernel.open_mount(str(source), read_only=True)
        change_all(private)  # what is placed in something shared is shared
        kernel.place_mount(mount, str(place))
        with open("/proc/self/mountinfo") as mounts:
            (copy,) = (line for line in mounts if f" {place} " in line)
        return copy.partition(" - ")[0].split()[5:]

    options, *tags = in_child(child)
    assert {"ro", "nosuid", "nodev"} <= set(options.split(",")) and tags == []
