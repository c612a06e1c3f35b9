"""What a process may do after it has locked itself in, tried by calls as a program would make them."""

import errno
import os
import shutil
import signal
import socket
import stat
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mappa_sandbox.isolation import kernel, landlock, privileges, system_paths

ABI = landlock.abi_version()
needs_landlock = pytest.mark.skipif(ABI < 3, reason=f"Landlock of this kernel: version {ABI}")
DENIED = {errno.EACCES, errno.EXDEV, errno.EPERM}


@pytest.fixture
def ground(tmp_path):
    """A folder with a workspace, packages to read, and a home to keep out of."""
    for name in ("work/inner", "packages/alpha/data", "packages/beta", "home"):
        (tmp_path / name).mkdir(parents=True)
    for name in (
        "work/mine.txt", "packages/top.py", "packages/alpha/code.py", "packages/alpha/data/truth.csv",
        "packages/alpha/key.txt", "packages/beta/code.py", "home/secret.txt", "home/public.txt",
    ):  # fmt: skip
        (tmp_path / name).write_text(name)
    (tmp_path / "packages/link.txt").symlink_to(tmp_path / "home/secret.txt")
    script = tmp_path / "packages/run.sh"
    script.write_text("#!/bin/sh\necho ran\n")
    script.chmod(0o755)
    shutil.copy(script, tmp_path / "home/run.sh")
    return tmp_path


@pytest.fixture
def caged(in_child, ground, uid):
    """Run a function in a child that may change `work` and read `packages`."""

    def caged(function, *, readable=(), hidden=()):
        if uid is not None:
            for path in (ground / "work", *(ground / "work").rglob("*")):
                os.chown(path, uid, uid)

        def child():
            kernel.no_new_privileges()
            if uid is not None:
                privileges.drop_to_user(uid, read_everything=True)
                kernel.set_dumpable()
            landlock.restrict(
                writable=[str(ground / "work")],
                readable=[str(ground / "packages"), *system_paths.SYSTEM_PATHS, *map(str, readable)],
                hidden=[str(ground / path) for path in hidden],
            )
            os.chdir(ground / "work")
            return function()

        return in_child(child)

    return caged


def read(path):
    with open(path) as file:
        return file.read()


def write(path, text="x"):
    with open(path, "w") as file:
        file.write(text)


def append(path):
    with open(path, "a") as file:
        file.write("x")


def snapshot(folder):
    return {
        str(path): (path.lstat().st_mode, path.lstat().st_size, path.lstat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
    }


@needs_landlock
def test_everything_but_devices_and_sockets_can_be_done_in_the_workspace(caged, refused, ground):
    def child():
        write("new.txt", "new")
        os.mkdir("folder")
        os.rename("new.txt", "folder/moved.txt")
        os.link("folder/moved.txt", "inner/hard.txt")
        os.symlink("folder", "soft")
        os.truncate("folder/moved.txt", 1)
        os.mkfifo("fifo")
        os.unlink("mine.txt")
        shutil.rmtree("inner")
        write("run.sh", "#!/bin/sh\nexit 7\n")
        os.chmod("run.sh", 0o755)
        assert os.spawnv(os.P_WAIT, "run.sh", ["run.sh"]) == 7
        with socket.socket(socket.AF_UNIX) as unix:
            return refused(unix.bind, "socket"), refused(os.mknod, "device", stat.S_IFCHR | 0o600, os.makedev(1, 3))

    bind, device = caged(child)
    assert bind == errno.EACCES
    assert device in (errno.EACCES, errno.EPERM)
    assert sorted(path.name for path in (ground / "work").iterdir()) == ["fifo", "folder", "run.sh", "soft"]
    assert (ground / "work/folder/moved.txt").read_text() == "n"


@needs_landlock
def test_nothing_outside_can_be_changed_or_read(caged, refused, ground):
    secret, public = ground / "home/secret.txt", ground / "home/public.txt"
    before = snapshot(ground / "home"), snapshot(ground / "packages")

    def child():
        os.symlink(secret, "link")
        attempts = {
            "read": refused(read, secret),
            "read public": refused(read, public),
            "through a link of mine": refused(read, "link"),
            "through a link of others": refused(read, ground / "packages/link.txt"),
            "by another way": refused(read, f"{ground}/work/../home/secret.txt"),
            "from its root": refused(read, f"/proc/self/root{secret}"),
            "list": refused(os.listdir, ground / "home"),
            "list above": refused(os.listdir, ground),
            "write": refused(write, secret),
            "append": refused(append, secret),
            "truncate": refused(os.truncate, secret, 0),
            "empty while opening": refused(os.open, secret, os.O_RDONLY | os.O_TRUNC),
            "create": refused(write, ground / "home/new.txt"),
            "create unnamed": refused(os.open, ground / "home", os.O_TMPFILE | os.O_RDWR),
            "mkdir": refused(os.mkdir, ground / "home/new"),
            "symlink": refused(os.symlink, "x", ground / "home/new"),
            "unlink": refused(os.unlink, secret),
            "rename": refused(os.rename, secret, "mine.txt"),
            "rename out": refused(os.rename, "mine.txt", ground / "home/new.txt"),
            "link": refused(os.link, secret, "hard"),
            "link out": refused(os.link, "mine.txt", ground / "home/new.txt"),
            "replace the workspace": refused(os.rename, ground / "work", ground / "gone"),
            "remove the workspace": refused(os.rmdir, ground / "work"),
            "write to packages": refused(write, ground / "packages/top.py"),
            "create in packages": refused(write, ground / "packages/new.py"),
            "delete in packages": refused(os.unlink, ground / "packages/top.py"),
            "shadow": refused(read, "/etc/shadow"),
            "all processes": refused(os.listdir, "/proc"),
            "parent": refused(read, f"/proc/{os.getppid()}/cmdline"),
            "connections": refused(read, f"/proc/{os.getpid()}/net/tcp"),
            "shared memory": refused(write, "/dev/shm/mappa-test"),
            "temporary": refused(write, f"{tempfile.gettempdir()}/mappa-test"),
        }
        return {name: number for name, number in attempts.items() if number not in DENIED}

    assert caged(child) == {}
    assert (snapshot(ground / "home"), snapshot(ground / "packages")) == before


@needs_landlock
def test_what_is_readable_can_be_read_and_run(caged, refused, ground):
    def child():
        assert read(ground / "packages/alpha/code.py") == "packages/alpha/code.py"
        assert "code.py" in os.listdir(ground / "packages/beta")
        assert read(ground / "home/public.txt") == "home/public.txt"
        ran = os.spawnv(os.P_WAIT, ground / "packages/run.sh", ["run.sh"])
        return ran, refused(os.execv, ground / "home/run.sh", ["run.sh"]), refused(write, ground / "home/public.txt")

    assert caged(child, readable=[ground / "home/public.txt", "/not/there"]) == (0, errno.EACCES, errno.EACCES)


@needs_landlock
def test_what_is_hidden_cannot_be_read_by_any_spelling(caged, refused, ground):
    packages = ground / "packages"

    def child():
        os.symlink(packages / "alpha", "alias")
        folder = os.open(packages / "alpha/data", os.O_PATH)
        listed = os.open(packages / "alpha", os.O_RDONLY)
        spellings = [
            refused(read, packages / "alpha/data/truth.csv"),
            refused(read, packages / "alpha/key.txt"),
            refused(read, packages / "beta/../alpha/key.txt"),
            refused(read, "alias/data/truth.csv"),
            refused(os.open, "truth.csv", os.O_RDONLY, dir_fd=folder),
            refused(os.open, "data/truth.csv", os.O_RDONLY, dir_fd=listed),
            refused(read, f"/proc/self/root{packages}/alpha/key.txt"),
            refused(os.link, packages / "alpha/key.txt", "key.txt"),
            refused(os.rename, packages / "alpha/data", "data"),
            refused(read, packages / "link.txt"),
        ]
        around = [read(packages / name) for name in ("top.py", "alpha/code.py", "beta/code.py")]
        return spellings, around, sorted(os.listdir(packages / "alpha"))

    spellings, around, listed = caged(child, hidden=["packages/alpha/data", "packages/alpha/key.txt"])
    assert set(spellings) <= DENIED
    assert around == ["packages/top.py", "packages/alpha/code.py", "packages/beta/code.py"]
    assert listed == ["code.py", "data", "key.txt"]


@needs_landlock
def test_devices_that_keep_nothing_are_there_and_no_others(caged, refused):
    def child():
        with open("/dev/null", "w") as null:
            null.write("x")
        with open("/dev/urandom", "rb") as source:
            assert len(source.read(8)) == 8
        others = [path for path in ("/dev/kmsg", "/dev/ptmx", "/dev/tty") if os.path.exists(path)]
        return [refused(os.open, path, os.O_RDONLY) for path in others] + [refused(os.open, "/dev/random", os.O_WRONLY)]

    assert set(caged(child)) == {errno.EACCES}


@needs_landlock
def test_a_process_may_read_about_itself_and_not_about_others(in_child, refused):
    def child():
        other = os.fork()
        if other == 0:
            signal.pause()
        kernel.no_new_privileges()
        landlock.restrict(
            writable=[], readable=[*system_paths.own_process_paths(), *system_paths.KERNEL_PATHS], hidden=[]
        )
        assert "VmRSS" in read("/proc/self/status")
        assert os.listdir("/proc/self/fd")
        assert "MemTotal" in read("/proc/meminfo")
        found = [
            refused(read, f"/proc/{pid}/{name}")
            for pid in (other, os.getppid())
            for name in ("environ", "cmdline", "maps", "mem", "status")
        ]
        found += [refused(read, f"/proc/self/{name}") for name in ("net/unix", "mountinfo", "task/self/environ")]
        found += [refused(os.readlink, f"/proc/{os.getppid()}/cwd"), refused(os.open, "/proc/self/mem", os.O_RDWR)]
        return found

    assert set(in_child(child)) <= {errno.EACCES, errno.ENOENT}


@needs_landlock
@pytest.mark.skipif(ABI < 6, reason="signals are not restricted before version 6")
def test_only_descendants_can_be_signalled(caged, refused):
    def child():
        own = os.fork()
        if own == 0:
            signal.pause()
        os.kill(own, signal.SIGKILL)
        return os.waitstatus_to_exitcode(os.waitpid(own, 0)[1]), refused(os.kill, os.getppid(), 0)

    assert caged(child) == (-signal.SIGKILL, errno.EPERM)


@needs_landlock
@pytest.mark.skipif(ABI < 6, reason="sockets are not restricted before version 6")
def test_tcp_and_abstract_sockets_are_closed_by_landlock_too(caged, refused):
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as unix:
        unix.bind("\0mappa-test-" + str(os.getpid()))
        unix.listen()
        where, name = server.getsockname(), unix.getsockname()

        def child():
            with socket.socket() as tcp, socket.socket(socket.AF_UNIX) as other, socket.socket() as listener:
                return refused(tcp.connect, where), refused(other.connect, name), refused(listener.bind, ("", 0))

        assert caged(child) == (errno.EACCES, errno.EPERM, errno.EACCES)


@needs_landlock
def test_children_are_sandboxed_too(caged, ground):
    program = f"open({str(ground / 'home/secret.txt')!r})"
    interpreter = [sys.prefix, sys.base_prefix]

    def child():
        return os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-c", "pass"]), os.spawnv(
            os.P_WAIT, sys.executable, [sys.executable, "-c", program]
        )

    assert caged(child, readable=interpreter) == (0, 1)


@needs_landlock
def test_a_writable_folder_must_be_there(in_child, ground):
    def child():
        kernel.no_new_privileges()
        landlock.restrict(writable=[str(ground / "not there")], readable=[], hidden=[])

    with pytest.raises(FileNotFoundError):
        in_child(child)


@needs_landlock
def test_privileges_must_have_been_given_up(in_child, stranger):
    def child():
        privileges.drop_to_user(stranger, read_everything=False)
        landlock.restrict(writable=[], readable=[], hidden=[])

    with pytest.raises(PermissionError):
        in_child(child)


@pytest.mark.parametrize(("abi", "words"), [(1, "empty files, signals"), (2, "empty files, signals"), (3, "signals"),
                                            (4, "signals"), (5, "signals"), (6, ""), (7, ""), (12, "")])  # fmt: skip
def test_gaps_are_named_until_there_are_none(abi, words):
    found = landlock.gaps(abi)
    assert len(found) == len(words.split(", ")) - (words == "")
    assert all(word in gap for word, gap in zip(words.split(", "), found, strict=False))


def test_a_kernel_without_landlock_has_version_0(monkeypatch):
    for number in (errno.ENOSYS, errno.EOPNOTSUPP):

        def missing(*_, number=number):
            raise OSError(number, "")

        monkeypatch.setattr(kernel, "syscall", missing)
        assert landlock.abi_version() == 0


def test_a_fault_of_the_kernel_is_no_missing_landlock(monkeypatch):
    def broken(*_):
        raise OSError(errno.EFAULT, "Bad address")

    monkeypatch.setattr(kernel, "syscall", broken)
    with pytest.raises(OSError, match="Bad address"):
        landlock.abi_version()


@needs_landlock
@pytest.mark.parametrize("version", range(1, min(ABI, 7) + 1))
def test_older_versions_are_asked_for_what_they_know(in_child, refused, monkeypatch, ground, version):
    """What a kernel of that version would be asked, this one must take as well."""
    asked = []
    real = kernel.syscall

    def recorded(number, *arguments):
        if number == 444:
            asked.append(bytes(arguments[0]))
        return real(number, *arguments)

    def child():
        monkeypatch.setattr(landlock, "abi_version", lambda: version)
        monkeypatch.setattr(kernel, "syscall", recorded)
        kernel.no_new_privileges()
        key = str(ground / "packages/alpha/key.txt")
        landlock.restrict(writable=[str(ground / "work")], readable=[str(ground / "packages")], hidden=[key])
        write(ground / "work/x")
        assert refused(read, key) == errno.EACCES
        return asked, refused(read, ground / "home/secret.txt")

    ((attributes, _), number) = in_child(child)
    rights = int.from_bytes(attributes[:8], "little")
    assert number == errno.EACCES
    assert rights.bit_length() == {1: 13, 2: 14, 3: 15, 4: 15}.get(version, 16)
    assert len(attributes) == 8 * (1 + (version >= 4) + (version >= 6))


# --- what is hidden, as rules -----------------------------------------------------------------------------------------

NAMES = st.sampled_from(["a", "b", "ab", "c"])
PATHS = st.lists(st.lists(NAMES, min_size=1, max_size=4).map("/".join), max_size=8)


def granted(rules, path):
    """The rights that rules give to a path: of each folder above it, and of itself."""
    rights = 0
    for place, allowed in rules:
        if path == place or path.startswith(place + "/"):
            rights |= allowed
    return rights


@settings(max_examples=60, deadline=None)
@given(PATHS, PATHS, st.lists(NAMES, max_size=2).map("/".join))
def test_everything_but_hidden_paths_is_readable(files, secrets, start):
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve()
        for name in files:
            path = root / name
            if not any((root / above).is_file() for above in [path, *path.parents]):
                path.parent.mkdir(parents=True, exist_ok=True)
                if not path.exists():
                    path.write_text("x")
        readable = root / start
        hidden = [str(root / secret) for secret in secrets]
        rules = landlock.expand_rules(str(readable), hidden)
        assert len(rules) == len({path for path, _ in rules})
        for path in map(str, root.rglob("*")):
            is_secret = any(path == secret or path.startswith(secret + "/") for secret in hidden)
            is_below = path == str(readable) or path.startswith(f"{readable}/")
            if os.path.isfile(path):
                assert bool(granted(rules, path) & landlock.READ_FILE) == (is_below and not is_secret)
            elif is_below and not is_secret:
                assert granted(rules, path) & landlock.READ_DIR


def test_a_link_in_a_folder_with_hidden_paths_gets_no_rule(ground):
    rules = dict(landlock.expand_rules(str(ground / "packages"), [str(ground / "packages/alpha")]))
    assert rules == {
        str(ground / "packages"): landlock.READ_DIR,
        str(ground / "packages/beta"): landlock.READ_RIGHTS,
        str(ground / "packages/top.py"): landlock.READ_FILE | landlock.EXECUTE,
        str(ground / "packages/run.sh"): landlock.READ_FILE | landlock.EXECUTE,
    }


@needs_landlock
def test_folders_are_walked_once_for_all_programs(in_child, refused, ground, monkeypatch):
    walks = []
    real = landlock.expand_rules
    monkeypatch.setattr(landlock, "expand_rules", lambda *arguments: walks.append(1) or real(*arguments))
    hidden = [str(ground / "packages/alpha/key.txt")]

    def program():
        kernel.no_new_privileges()
        landlock.restrict(writable=[str(ground / "work")], readable=[str(ground / "packages")], hidden=hidden)
        assert read(ground / "packages/alpha/code.py")
        assert read(ground / "work/mine.txt")
        assert refused(read, hidden[0]) == errno.EACCES
        os._exit(len(walks))

    def fork_server():
        landlock.prepare(hidden)
        ends = []
        for _ in range(2):
            pid = os.fork()
            if pid == 0:
                program()
            ends.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        return ends

    assert in_child(fork_server) == [1, 1]


@needs_landlock
def test_a_workspace_that_came_after_the_walk_can_be_used(in_child, refused, ground):
    hidden = [str(ground / "packages/alpha/key.txt")]

    def child():
        landlock.prepare(hidden)
        descriptors = len(os.listdir("/proc/self/fd"))
        (ground / "late").mkdir()
        kernel.no_new_privileges()
        landlock.restrict(writable=[str(ground / "late")], readable=["/proc", "/not/there"], hidden=hidden)
        write(ground / "late/file", "text")
        os.mkdir(ground / "late/inner")
        os.rename(ground / "late/file", ground / "late/inner/file")
        assert read(ground / "late/inner/file") == "text"
        return refused(read, hidden[0]), len(os.listdir("/proc/self/fd")) - descriptors

    assert in_child(child) == (errno.EACCES, 0)


@needs_landlock
def test_a_folder_that_can_be_entered_but_not_listed_hides_nothing_else(in_child, refused, ground, stranger):
    for above in (ground, *ground.parents[:3]):
        above.chmod(above.stat().st_mode | 0o111)
    (ground / "packages").chmod(0o711)

    def child():
        privileges.drop_to_user(stranger, read_everything=False)
        kernel.no_new_privileges()
        hidden = [str(ground / "packages/alpha/key.txt")]
        landlock.restrict(writable=[], readable=[str(ground / "packages/alpha")], hidden=hidden)
        return refused(read, ground / "packages/alpha/code.py"), refused(read, hidden[0])

    assert in_child(child) == (0, errno.EACCES)


def test_a_hidden_path_may_lie_in_the_root_folder():
    assert ("/usr", landlock.READ_RIGHTS) not in landlock.expand_rules("/", ["/usr"])
    assert ("/proc", landlock.READ_RIGHTS) in landlock.expand_rules("/", ["/usr"])
    assert landlock.expand_rules("/usr/bin", ["/usr"]) == []
    assert landlock.expand_rules("/usr", ["/"]) == []
