import errno
import os
import subprocess
from pathlib import Path

import pytest

from mappa_sandbox.isolation import kernel, privileges

READ_SEARCH = 1 << 2


def capabilities(text):
    """Capability sets of /proc/PID/status by their names: Inh, Prm, Eff, Bnd, Amb."""
    lines = [line.split(":") for line in text.splitlines() if line.startswith("Cap")]
    return {name.removeprefix("Cap"): int(value, 16) for name, value in lines}


def status():
    return Path("/proc/self/status").read_text()


@pytest.fixture
def private(tmp_path):
    """A file that only root may reach."""
    (tmp_path / "private").mkdir(0o700)
    path = tmp_path / "private/file.txt"
    path.write_text("private")
    path.chmod(0o600)
    return path


@pytest.mark.parametrize(("read_everything", "kept"), [(False, 0), (True, READ_SEARCH)])
@pytest.mark.parametrize("first", ["drop", "no new privileges"])
def test_only_the_requested_privileges_are_kept(in_child, stranger, read_everything, kept, first):
    def child():
        if first == "no new privileges":
            kernel.no_new_privileges()
        os.setgroups([0, 4])
        privileges.drop_to_user(stranger, read_everything=read_everything)
        kernel.no_new_privileges()
        kernel.set_dumpable()
        started = subprocess.run(["cat", "/proc/self/status"], stdout=subprocess.PIPE, text=True, check=True)
        return os.getresuid(), os.getresgid(), os.getgroups(), status(), started.stdout

    users, groups, others, itself, started = in_child(child)
    assert users == groups == (stranger,) * 3
    assert others == []
    everything = {"Inh": kept, "Prm": kept, "Eff": kept, "Bnd": 0, "Amb": kept}
    assert capabilities(itself) == capabilities(started) == everything


@pytest.mark.parametrize("read_everything", [False, True])
def test_the_user_cannot_be_changed_back(in_child, refused, stranger, read_everything):
    def child():
        privileges.drop_to_user(stranger, read_everything=read_everything)
        attempts = [
            refused(os.setuid, 0),
            refused(os.setgid, 0),
            refused(os.setresuid, 0, 0, 0),
            refused(os.setgroups, [0]),
            refused(os.chown, "/", stranger, stranger),
            refused(os.kill, os.getppid(), 0),
            refused(privileges._set_capabilities, (1 << 41) - 1, 0),
            refused(os.chroot, "/"),
        ]
        with pytest.raises(OSError, match="Operation not permitted"):
            privileges.drop_to_user(0, read_everything=False)
        return attempts

    assert set(in_child(child)) == {errno.EPERM}


def test_the_capability_to_read_everything_allows_no_writing(in_child, refused, stranger, private):
    def child():
        privileges.drop_to_user(stranger, read_everything=True)
        started = subprocess.run(["cat", private], stdout=subprocess.PIPE, text=True, check=True).stdout
        return private.read_text(), started, refused(private.write_text, "x"), refused(private.unlink)

    assert in_child(child) == ("private", "private", errno.EACCES, errno.EACCES)


def test_without_the_capability_private_files_cannot_be_read(in_child, refused, stranger, private):
    def child():
        privileges.drop_to_user(stranger, read_everything=False)
        return refused(private.read_text)

    assert in_child(child) == errno.EACCES


def test_only_root_can_change_its_user(in_child, stranger):
    def child():
        os.setresuid(stranger, stranger, stranger)
        privileges.drop_to_user(stranger + 1, read_everything=False)

    with pytest.raises(PermissionError):
        in_child(child)


def test_dropped_capabilities_cannot_be_regained(in_child, refused, stranger):
    def child():
        privileges.drop_capabilities()
        return status(), os.getresuid(), refused(os.setgroups, []), refused(os.chroot, "/")

    text, users, groups, root = in_child(child)
    assert capabilities(text) == dict.fromkeys(("Inh", "Prm", "Eff", "Bnd", "Amb"), 0)
    assert users == (0, 0, 0)
    assert groups == root == errno.EPERM
