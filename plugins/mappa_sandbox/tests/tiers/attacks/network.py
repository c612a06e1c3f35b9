"""Talks to somebody: the machine itself, its sockets, the network, or the kernel's own channels."""

import errno
import os
import socket

from kit import BAIT, MARK, escaped, must_fail, syscall

INET, INET6, UNIX = socket.AF_INET, socket.AF_INET6, socket.AF_UNIX
STREAM, DATAGRAM = socket.SOCK_STREAM, socket.SOCK_DGRAM
MSG_FASTOPEN = 0x20000000


def talk(family, kind, address):
    with socket.socket(family, kind) as one:
        one.settimeout(2)
        one.connect(address)
        one.send(b"hello")


def send(family, address, flags=0, kind=DATAGRAM):
    with socket.socket(family, kind) as one:
        one.settimeout(2)
        one.sendto(b"hello", flags, address)


def listen(family, kind, address):
    with socket.socket(family, kind) as one:
        one.bind(address)
        if kind == STREAM:
            one.listen()


must_fail("TCP to the machine itself", talk, INET, STREAM, ("127.0.0.1", BAIT["tcp"]))
must_fail("TCP by its other address", talk, INET6, STREAM, ("::ffff:127.0.0.1", BAIT["tcp"]))
must_fail("TCP by the address of nobody", talk, INET, STREAM, ("0.0.0.0", BAIT["tcp"]))
must_fail("fast open", send, INET, ("127.0.0.1", BAIT["tcp"]), MSG_FASTOPEN, STREAM)
must_fail("a connected UDP socket", talk, INET, DATAGRAM, ("127.0.0.1", BAIT["udp"]))
must_fail("a Unix socket", talk, UNIX, STREAM, BAIT["unix"])
must_fail("an abstract Unix socket", talk, UNIX, STREAM, "\0" + BAIT["abstract"])
must_fail("a datagram to a Unix socket", talk, UNIX, DATAGRAM, BAIT["unix_datagram"])
must_fail("a datagram to an abstract socket", send, UNIX, "\0" + BAIT["abstract_datagram"])
for name in ("/run/docker.sock", "/var/run/docker.sock", "/run/systemd/private", "/run/dbus/system_bus_socket"):
    must_fail(f"the socket {name}", talk, UNIX, STREAM, name)
must_fail("an address of the internet", talk, INET, STREAM, ("192.0.2.1", 80))
must_fail("a name server", send, INET, ("192.0.2.53", 53))
must_fail("a raw socket", socket.socket, INET, socket.SOCK_RAW, 1)
must_fail("a packet socket", socket.socket, 17, socket.SOCK_RAW, 0x300)
must_fail("a socket of the virtual machine's host", talk, 40, STREAM, (2, 1))
must_fail("io_uring", syscall, "io_uring_setup", 8, os.environ["HOME"].encode() + bytes(200))


def by_passing():
    """A pair is allowed; an address or a descriptor on it is not."""
    one, other = socket.socketpair()
    with one, other:
        socket.send_fds(one, [b"x"], [1])


must_fail("passing a descriptor", by_passing)
one, other = socket.socketpair()
one.send(b"x")
if other.recv(1) != b"x":
    escaped("a pair of sockets does not work")
try:  # UDP answers nothing, so that the other side looks whether it came
    send(INET, ("127.0.0.1", BAIT["udp"]))
except OSError as error:
    if error.errno not in (errno.EPERM, errno.EACCES, errno.ENETUNREACH, errno.ECONNREFUSED, errno.EAFNOSUPPORT):
        print("UDP ended with", error)
for family, kind, address in (
    (INET, STREAM, ("127.0.0.1", 0)),
    (INET, DATAGRAM, ("0.0.0.0", 0)),
    (UNIX, STREAM, "\0" + MARK),
):
    try:
        listen(family, kind, address)
    except OSError:
        continue
    escaped("listens at", address)
print("done")
