"""The filter, run by a slow interpreter of our own, and by the kernel."""

import ctypes
import errno
import fcntl
import mmap
import os
import re
import resource
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import termios
from itertools import product
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mappa_sandbox.isolation import kernel, privileges, seccomp, syscalls

MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
I386, ARM = 0x40000003, 0x40000028
ALLOWED, KILLED = "allowed", "killed"
HERE = os.uname().machine


# --- an interpreter ---------------------------------------------------------------------------------------------------


def answer(program, number, machine, arguments=(0,) * 6):
    """ALLOWED, KILLED, or the errno that a call gets."""
    data = struct.pack("<IIQ6Q", number & 0xFFFFFFFF, machine, 0x7F0000001000, *arguments)
    code = list(struct.iter_unpack("<HBBI", program))
    accumulator, position = 0, 0
    while True:
        operation, if_true, if_false, operand = code[position]
        position += 1
        if operation == 0x20:  # load the word at
            (accumulator,) = struct.unpack_from("<I", data, operand)
        elif operation == 0x54:
            accumulator &= operand
        elif operation == 0x05:  # jump
            position += operand
        elif operation in (0x15, 0x25):  # jump if equal, if greater
            holds = accumulator == operand if operation == 0x15 else accumulator > operand
            position += if_true if holds else if_false
        elif operation == 0x06:
            assert operand in (0x7FFF0000, 0x80000000) or operand >> 16 == 5
            return {0x7FFF0000: ALLOWED, 0x80000000: KILLED}.get(operand, operand & 0xFFFF)
        else:
            raise AssertionError(f"instruction {operation:#x}")


# --- what is expected, in plain words ---------------------------------------------------------------------------------


def ioctl_number(direction, kind, number, size):
    return direction << 30 | size << 16 | ord(kind) << 8 | number


WRITES, READS = 1, 2
BAD_IOCTLS = {
    termios.TIOCSTI, 0x541C,
    ioctl_number(WRITES, "f", 2, 8), ioctl_number(WRITES, "f", 2, 4), ioctl_number(WRITES, "X", 32, 28),
    ioctl_number(WRITES, "v", 2, 8), ioctl_number(WRITES, "v", 2, 4), ioctl_number(WRITES, "f", 133, 128),
    ioctl_number(READS, "f", 19, 12),
}  # fmt: skip
NAMESPACES = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
PARENT, FILES, THREAD = 0x8000, 0x400, 0x10000


def low(word):
    return word & 0xFFFFFFFF


PERMITTED = {
    "socketpair": lambda a: (
        low(a[0]) == socket.AF_UNIX and low(a[1]) & ~(socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC) == socket.SOCK_STREAM
    ),
    "setsockopt": lambda a: low(a[2]) not in (socket.SO_SNDBUF, socket.SO_RCVBUF, 32, 33),
    "sendto": lambda a: a[4] == 0 and not a[3] & socket.MSG_OOB,
    "clone": lambda a: not a[0] & (NAMESPACES | PARENT) and not (a[0] & THREAD and not a[0] & FILES),
    "close_range": lambda a: not a[2] & 2,
    "personality": lambda a: low(a[0]) in (0, 0xFFFFFFFF),
    "mknod": lambda a: stat.S_IFMT(a[1] & 0xFFFF) in (0, stat.S_IFREG, stat.S_IFIFO),
    "mknodat": lambda a: stat.S_IFMT(a[2] & 0xFFFF) in (0, stat.S_IFREG, stat.S_IFIFO),
    "ioctl": lambda a: low(a[1]) not in BAD_IOCTLS,
    "fcntl": lambda a: low(a[1]) not in (fcntl.F_SETLEASE, 1024 + 7, 1024 + 16),
    "prctl": lambda a: low(a[0]) != 35,
    "prlimit64": lambda a: low(a[0]) == 0,
    "setpriority": lambda a: low(a[0]) == os.PRIO_PROCESS and low(a[1]) == 0,
    "ioprio_set": lambda a: low(a[0]) == 1 and low(a[1]) == 0,
    **dict.fromkeys(
        ("sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr"), lambda a: low(a[0]) == 0
    ),
}


def expected(machine, number, arguments, keep_metadata):
    if not 0 <= number <= 469:
        return errno.ENOSYS
    for calls, outcome in (
        (syscalls.REFUSED_CALLS, errno.EPERM),
        (syscalls.MISSING_CALLS, errno.ENOSYS),
        (syscalls.UNSUPPORTED_CALLS, errno.EOPNOTSUPP),
        (syscalls.METADATA_CALLS, 0 if keep_metadata else ALLOWED),
    ):
        if number in [getattr(numbers, machine) for numbers in calls.values()]:
            touches = outcome == 0 and number == getattr(syscalls.METADATA_CALLS["utimensat"], machine)
            return errno.EPERM if touches and arguments[1] and not arguments[2] else outcome
    if number == dict(zip(("x86_64", "aarch64"), syscalls.SHARING_NUMBERS, strict=True))[machine]:
        shares = bool(arguments[3] & mmap.MAP_SHARED and arguments[3] & mmap.MAP_ANONYMOUS)
        return errno.ENOMEM if shares and arguments[1] > 1 << 20 else ALLOWED
    for name, numbers in syscalls.CONDITIONAL_CALLS.items():
        if number == getattr(numbers, machine):
            return ALLOWED if PERMITTED[name](arguments) else errno.EPERM
    return ALLOWED


GROUPS = (
    syscalls.REFUSED_CALLS,
    syscalls.MISSING_CALLS,
    syscalls.UNSUPPORTED_CALLS,
    syscalls.METADATA_CALLS,
    syscalls.CONDITIONAL_CALLS,
)
KNOWN = sorted(
    {
        number
        for calls in (*GROUPS, {"mmap": syscalls.SHARING_NUMBERS})
        for numbers in calls.values()
        for number in numbers
        if number is not None
    }
)
CONDITIONAL = sorted(
    {number for numbers in syscalls.CONDITIONAL_CALLS.values() for number in numbers if number is not None}
)
INTERESTING = [
    0, 1, 2, 5, 7, 8, 32, 33, 35, 1 << 20, (1 << 20) + 1, 0x500, 0x1_0400,
    1024, 1031, 1040, 0x80801, 0xFFFF_FFFF, 0x1_0000_0001, 0x1_FFFF_FFFF,
    stat.S_IFREG | 0o644, stat.S_IFIFO, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFSOCK, stat.S_IFDIR, stat.S_IFLNK,
    *BAD_IOCTLS, *(bad | 0xABCD << 32 for bad in BAD_IOCTLS), *(1 << bit for bit in range(64)),
]  # fmt: skip
"""Arguments that a condition may look for, alone and with bits that it should not look at."""
WORDS = st.integers(0, 2**64 - 1) | st.sampled_from(INTERESTING)
NUMBERS = st.sampled_from(KNOWN) | st.sampled_from(CONDITIONAL) | st.integers(0, 480) | st.integers(-(2**31), 2**31 - 1)


@given(st.sampled_from(sorted(MACHINES)), NUMBERS, st.tuples(*[WORDS] * 6), st.booleans())
@example("x86_64", 0x40000000 | 41, (0,) * 6, False)  # `socket` of x32
@example("x86_64", -1, (0,) * 6, False)
def test_a_call_is_answered_as_documented(machine, number, arguments, keep_metadata):
    program = seccomp.build_filter(keep_metadata=keep_metadata)
    assert answer(program, number, MACHINES[machine], arguments) == expected(machine, number, arguments, keep_metadata)


@pytest.mark.parametrize("keep_metadata", [False, True])
@pytest.mark.parametrize("machine", MACHINES)
def test_every_number_is_answered_as_documented(machine, keep_metadata):
    program = seccomp.build_filter(keep_metadata=keep_metadata)
    for number in range(1024):
        assert answer(program, number, MACHINES[machine]) == expected(machine, number, (0,) * 6, keep_metadata), number


@pytest.mark.parametrize("name", syscalls.CONDITIONAL_CALLS)
@pytest.mark.parametrize("machine", MACHINES)
def test_a_condition_looks_at_every_argument_that_it_should(machine, name):
    number = getattr(syscalls.CONDITIONAL_CALLS[name], machine)
    if number is None:
        return
    program = seccomp.build_filter(keep_metadata=False)
    good = next(first for first in product([0, 1], repeat=6) if PERMITTED[name](first))
    outcomes = set()
    for position, word in product(range(6), INTERESTING):
        arguments = (*good[:position], word, *good[position + 1 :])
        outcome = answer(program, number, MACHINES[machine], arguments)
        assert outcome == (ALLOWED if PERMITTED[name](arguments) else errno.EPERM), (position, hex(word))
        outcomes.add(outcome)
    assert outcomes == {ALLOWED, errno.EPERM}


@given(st.integers(0, 2**32 - 1).filter(lambda machine: machine not in MACHINES.values()), NUMBERS)
@example(I386, 102)
@example(ARM, 281)
def test_another_instruction_set_is_killed(machine, number):
    assert answer(seccomp.build_filter(keep_metadata=False), number, machine) == KILLED


@given(st.sampled_from(sorted(MACHINES)), st.sampled_from(CONDITIONAL), st.tuples(*[WORDS] * 6), st.integers(0, 5))
def test_the_upper_half_of_an_int_does_not_matter(machine, number, arguments, position):
    if number == getattr(syscalls.CONDITIONAL_CALLS["sendto"], machine) and position == 4:
        return  # an address has both
    other = tuple(word ^ (1 << 40) if index == position else word for index, word in enumerate(arguments))
    program = seccomp.build_filter(keep_metadata=False)
    assert answer(program, number, MACHINES[machine], other) == answer(program, number, MACHINES[machine], arguments)


@pytest.mark.parametrize(
    ("machine", "name", "number", "outcome"),
    [
        ("x86_64", "read", 0, ALLOWED), ("x86_64", "execve", 59, ALLOWED), ("x86_64", "openat", 257, ALLOWED),
        ("x86_64", "futex", 202, ALLOWED), ("x86_64", "kill", 62, ALLOWED), ("x86_64", "socket", 41, errno.EPERM),
        ("x86_64", "ptrace", 101, errno.EPERM), ("x86_64", "clone3", 435, errno.ENOSYS),
        ("x86_64", "shmget", 29, errno.EPERM), ("x86_64", "bpf", 321, errno.EPERM),
        ("aarch64", "read", 63, ALLOWED), ("aarch64", "execve", 221, ALLOWED), ("aarch64", "openat", 56, ALLOWED),
        ("aarch64", "futex", 98, ALLOWED), ("aarch64", "kill", 129, ALLOWED), ("aarch64", "socket", 198, errno.EPERM),
        ("aarch64", "ptrace", 117, errno.EPERM), ("aarch64", "clone3", 435, errno.ENOSYS),
        ("aarch64", "shmget", 194, errno.EPERM), ("aarch64", "bpf", 280, errno.EPERM),
    ],
)  # fmt: skip
def test_calls_are_answered_by_their_number(machine, name, number, outcome):
    assert answer(seccomp.build_filter(keep_metadata=True), number, MACHINES[machine]) == outcome


WAYS_OUT = """
    socket connect bind listen accept accept4 sendmsg sendmmsg unshare setns chroot pivot_root mount umount2 open_tree
    move_mount fsopen fsconfig fsmount fspick mount_setattr open_tree_attr statmount listmount ptrace process_vm_readv
    process_vm_writev process_madvise pidfd_getfd kcmp bpf perf_event_open userfaultfd name_to_handle_at
    open_by_handle_at fanotify_init inotify_add_watch add_key request_key keyctl init_module finit_module delete_module
    kexec_load kexec_file_load reboot swapon swapoff quotactl quotactl_fd acct syslog settimeofday clock_settime
    clock_adjtime adjtimex sethostname setdomainname shmget shmat semget semop semtimedop msgget msgsnd mq_open
    lookup_dcookie nfsservctl vhangup modify_ldt iopl ioperm file_setattr setxattr lsetxattr fsetxattr setxattrat
"""


def test_every_call_that_could_escape_is_restricted():
    assert set(WAYS_OUT.split()) - syscalls.REFUSED_CALLS.keys() == set()
    missing = (
        "clone3 openat2 io_uring_setup io_uring_enter io_uring_register memfd_create memfd_secret vmsplice io_setup"
    )
    assert set(missing.split()) == syscalls.MISSING_CALLS.keys()


def test_no_call_is_in_two_groups_and_every_condition_has_a_call():
    for machine in MACHINES:
        numbers = [getattr(call, machine) for group in GROUPS for call in group.values()]
        numbers = [number for number in numbers if number is not None]
        assert len(numbers) == len(set(numbers))
        assert max(numbers) <= syscalls.NEWEST_CALL
    assert syscalls.CONDITIONS.keys() == syscalls.CONDITIONAL_CALLS.keys() == PERMITTED.keys()


def headers():
    """Machine -> name -> number, of the kernel's own headers, as far as they are installed."""
    x86 = [*Path("/usr/include").glob("*/asm/unistd_64.h"), *Path("/usr/include").glob("asm/unistd_64.h")]
    found = {}
    for machine, paths in (("x86_64", x86), ("aarch64", [Path("/usr/include/asm-generic/unistd.h")])):
        text = "".join(path.read_text() for path in paths if path.exists())
        found[machine] = {
            name: int(number)
            for name, number in re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)$", text, re.MULTILINE)
        }
    return found


@pytest.mark.parametrize("machine", MACHINES)
def test_numbers_are_those_of_the_kernels_headers(machine):
    known = headers()[machine]
    if not known or (machine == "x86_64" and machine != HERE):
        pytest.skip("the kernel's headers are not installed")
    ours = {name: getattr(numbers, machine) for group in GROUPS for name, numbers in group.items()}
    newest = max(known.values())
    assert {name: number for name, number in ours.items() if number is None and name in known} == {}
    checked = {name: number for name, number in ours.items() if number is not None and number <= newest}
    assert checked == {name: known[name] for name in checked}
    assert len(checked) > 100


# --- the kernel -------------------------------------------------------------------------------------------------------


def lock(keep_metadata=False):
    """Put this process under the filter, as somebody who can do no harm should it not hold."""
    if os.geteuid() == 0:
        privileges.drop_to_user(54321, read_everything=False)
    kernel.no_new_privileges()
    seccomp.install_filter(seccomp.build_filter(keep_metadata=keep_metadata))


def numbers_here(calls):
    return {name: getattr(numbers, HERE) for name, numbers in calls.items() if getattr(numbers, HERE) is not None}


def test_refused_calls_fail_with_eperm_in_the_kernel(in_child, refused):
    calls = numbers_here(syscalls.REFUSED_CALLS)

    def child():
        harmless = ["socket", "inotify_init1", "semctl", "listen", "shmdt", "get_robust_list"]
        before = {refused(kernel.syscall, calls[name], 0, 0, 0, 0, 0, 0) for name in harmless}
        lock()
        return before, {name: refused(kernel.syscall, number, 0, 0, 0, 0, 0, 0) for name, number in calls.items()}

    before, after = in_child(child)
    assert errno.EPERM not in before
    assert after == dict.fromkeys(calls, errno.EPERM)


def test_missing_calls_fail_with_enosys_in_the_kernel(in_child, refused):
    calls = numbers_here(syscalls.MISSING_CALLS)

    def child():
        lock()
        numbers = [*calls.values(), 470, 512, 547, 0x40000000 | 41]
        return [refused(kernel.syscall, number, 0, 0, 0, 0, 0, 0) for number in numbers]

    assert set(in_child(child)) == {errno.ENOSYS}


def test_room_for_a_file_is_written_where_it_cannot_be_reserved(in_child, tmp_path):
    def child() -> tuple[int, int]:
        with (tmp_path / "f").open("wb") as file:
            lock()
            os.posix_fallocate(file.fileno(), 0, 10_000)
            refused = kernel.LIBC.fallocate(file.fileno(), 1, ctypes.c_long(1 << 20), ctypes.c_long(4096))
            return refused, ctypes.get_errno()

    assert in_child(child) == (-1, errno.EOPNOTSUPP)
    assert (tmp_path / "f").stat().st_size == 10_000


def test_conditions_hold_in_the_kernel(in_child, refused):
    def child():
        ours, other = os.getpid(), os.getppid()
        affinity = os.sched_getaffinity(0)
        lock()
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        with Path(os.devnull).open() as null:
            lease = refused(fcntl.fcntl, null, fcntl.F_SETLEASE, fcntl.F_RDLCK)
            typed = refused(fcntl.ioctl, null, termios.TIOCSTI, b"x")
            duplicate = refused(fcntl.fcntl, null, fcntl.F_GETFD)
        left, right = socket.socketpair()
        return {
            "allowed": [
                refused(resource.setrlimit, resource.RLIMIT_NOFILE, limits),
                refused(os.nice, 1),
                refused(os.sched_setaffinity, 0, affinity),
                refused(left.send, b"x"),
                refused(right.recv, 1),
                refused(socket.socketpair, socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK),
                duplicate,
            ],
            "refused": [
                refused(resource.prlimit, other, resource.RLIMIT_NOFILE, limits),
                refused(resource.prlimit, ours, resource.RLIMIT_NOFILE, limits),
                refused(os.setpriority, os.PRIO_PROCESS, other, 19),
                refused(os.setpriority, os.PRIO_USER, 0, 19),
                refused(os.sched_setaffinity, other, affinity),
                refused(socket.socketpair, socket.AF_UNIX, socket.SOCK_DGRAM),
                refused(socket.socketpair, socket.AF_UNIX, socket.SOCK_SEQPACKET),
                refused(left.send, b"x", socket.MSG_OOB),
                refused(left.sendto, b"x", "/nowhere"),
                refused(socket.send_fds, left, [b"x"], [0]),
                lease,
                typed,
            ],
        }

    result = in_child(child)
    assert set(result["allowed"]) == {0}
    assert set(result["refused"]) == {errno.EPERM}


def test_even_root_makes_no_device_and_no_namespace(in_child, refused, tmp_path, stranger):
    def child():
        kernel.no_new_privileges()
        seccomp.install_filter(seccomp.build_filter(keep_metadata=False))
        clone = getattr(syscalls.CONDITIONAL_CALLS["clone"], HERE)
        return [
            refused(os.mknod, tmp_path / "null", 0o666 | stat.S_IFCHR, os.makedev(1, 3)),
            refused(os.mknod, tmp_path / "socket", 0o666 | stat.S_IFSOCK),
            refused(os.mkfifo, tmp_path / "fifo"),
            refused(os.mknod, tmp_path / "file"),
            refused(kernel.syscall, clone, kernel.CLONE_NEWUSER | signal.SIGCHLD, 0, 0, 0, 0),
            refused(os.chroot, tmp_path),
        ]

    assert in_child(child) == [errno.EPERM, errno.EPERM, 0, 0, errno.EPERM, errno.EPERM]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fifo", "file"]


def test_metadata_is_kept_and_copying_goes_on(in_child, tmp_path):
    original = tmp_path / "original"
    original.write_text("text")
    original.chmod(0o640)
    os.utime(original, ns=(1_000_000_000, 2_000_000_000))
    before = original.stat()

    def child():
        kernel.no_new_privileges()
        seccomp.install_filter(seccomp.build_filter(keep_metadata=True))
        original.chmod(0o777)
        os.utime(original, ns=(5, 5))
        original.touch()
        (tmp_path / "touched").touch()
        subprocess.run(["touch", tmp_path / "touched by another"], check=True)
        os.chown(original, 1, 1)
        with pytest.raises(PermissionError):
            os.setxattr(original, "user.x", b"1")
        shutil.copy2(original, tmp_path / "copy")
        with pytest.raises(OSError, match="Operation not permitted"):
            fcntl.ioctl(os.open(original, os.O_RDONLY), ioctl_number(WRITES, "f", 2, 8), struct.pack("q", 0))

    in_child(child)
    after = original.stat()
    assert (after.st_mode, after.st_uid, after.st_mtime_ns, after.st_ctime_ns) == (
        before.st_mode, before.st_uid, before.st_mtime_ns, before.st_ctime_ns,
    )  # fmt: skip
    assert os.listxattr(original) == []
    assert (tmp_path / "touched").exists() and (tmp_path / "touched by another").exists()
    assert (tmp_path / "copy").read_text() == "text"
    assert (tmp_path / "copy").stat().st_mtime_ns != before.st_mtime_ns


def test_metadata_can_be_changed_where_it_is_not_kept(in_child, tmp_path):
    (tmp_path / "file").touch(0o600)

    def child():
        kernel.no_new_privileges()
        seccomp.install_filter(seccomp.build_filter(keep_metadata=False))
        (tmp_path / "file").chmod(0o755)

    in_child(child)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o755


def test_a_filter_cannot_be_installed_before_privileges_are_given_up(in_child, stranger):
    def child():
        os.setresuid(stranger, stranger, stranger)
        seccomp.install_filter(seccomp.build_filter(keep_metadata=False))

    with pytest.raises(PermissionError):
        in_child(child)


def run_machine_code(code):
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    return ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()


@pytest.mark.skipif(HERE != "x86_64", reason="i386 is another instruction set of x86_64 alone")
def test_calls_of_i386_end_the_process(in_child):
    getpid_of_i386 = b"\x53\xb8\x14\x00\x00\x00\xcd\x80\x5b\xc3"  # push rbx; mov eax, 20; int 0x80; pop rbx; ret
    try:
        assert in_child(lambda: run_machine_code(getpid_of_i386) > 0)
    except ChildProcessError:
        pytest.skip("this kernel runs no programs of i386")

    def child():
        lock()
        run_machine_code(getpid_of_i386)

    with pytest.raises(ChildProcessError) as caught:
        in_child(child)
    assert caught.value.errno == -signal.SIGSYS


USEFUL = """
import asyncio, concurrent.futures, multiprocessing, os, socket, subprocess, sys, tempfile, threading
from mappa_sandbox.isolation import kernel, seccomp

kernel.no_new_privileges()
seccomp.install_filter(seccomp.build_filter(keep_metadata=False))


async def echo():
    process = await asyncio.create_subprocess_exec("cat", stdin=-1, stdout=-1)
    out, _ = await process.communicate(b"async")
    return out.decode()


if __name__ == "__main__":
    thread = threading.Thread(target=print, args=("thread",))
    thread.start()
    thread.join()
    print(subprocess.run(["echo", "subprocess"], stdout=-1, text=True).stdout.strip())
    print(subprocess.run("echo shell | cat", shell=True, stdout=-1, text=True).stdout.strip())
    for method in ("fork", "spawn"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            print(pool.map(abs, [-1, -2]))
    with concurrent.futures.ProcessPoolExecutor(2) as pool:
        print(list(pool.map(abs, [-3, -4])))
    left, right = socket.socketpair()
    left.sendall(b"pair")
    print(right.recv(4).decode())
    print(asyncio.run(echo()))
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"x")
    os.sched_setaffinity(0, os.sched_getaffinity(0))
    print("done")
"""


def test_calls_that_programs_need_are_allowed(tmp_path):
    script = tmp_path / "useful.py"
    script.write_text(USEFUL)
    root = Path(seccomp.__file__).parents[2]
    done = subprocess.run(
        [sys.executable, script],
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "thread", "subprocess", "shell", "[1, 2]", "[1, 2]", "[3, 4]", "pair", "async", "done"
    ]  # fmt: skip
