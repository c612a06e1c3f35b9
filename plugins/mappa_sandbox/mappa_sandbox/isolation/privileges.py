"""Give up all privileges of this process, for good."""

from __future__ import annotations

import ctypes
import os
import struct
from errno import EINVAL

from mappa_sandbox.isolation import kernel

CAP_DAC_READ_SEARCH = 2
_CAP_WORDS = 64
_CAPABILITY_VERSION_3 = 0x2008_0522
_AMBIENT_RAISE, _AMBIENT_CLEAR_ALL = 2, 4


def drop_to_user(uid: int, *, read_everything: bool) -> None:
    """As root, become the user and group `uid`, in no other group and without capabilities, for good; this holds for
    all that this process starts.

    With `read_everything` CAP_DAC_READ_SEARCH stays, so that an interpreter in a private folder can be read. This
    requires a sandbox that restricts reading by path (Landlock), and a filter that refuses `open_by_handle_at`, which
    bypasses paths. The capability does not allow writing, and without new privileges nothing else.

    Undoes `die_with_parent` and `set_dumpable`, which the caller must repeat.

    Raises:
        OSError: this process is not root, or lacks the privileges to change its user (some containers).
    """
    kept = 1 << CAP_DAC_READ_SEARCH if read_everything else 0
    # Groups before the user, who may no longer change them.
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    if kept:  # inheritable before the bounding set goes, which limits what can be added to it
        _set_capabilities(_permitted_capabilities(), kept)
    _empty_bounding_set()
    # Otherwise leaving user 0 clears the permitted set, and with it what `kept` is to be taken from.
    kernel.prctl(kernel.PR_SET_KEEPCAPS, 1 if kept else 0)
    os.setresuid(uid, uid, uid)
    kernel.prctl(kernel.PR_SET_KEEPCAPS, 0)
    kernel.prctl(kernel.PR_CAP_AMBIENT, _AMBIENT_CLEAR_ALL)
    _set_capabilities(kept, kept)
    if kept:  # ambient, so that the programs that this one executes have it, too
        kernel.prctl(kernel.PR_CAP_AMBIENT, _AMBIENT_RAISE, CAP_DAC_READ_SEARCH)


def drop_capabilities() -> None:
    """Drop the capabilities gained by entering a user namespace, for good; the user stays the same."""
    _empty_bounding_set()
    kernel.prctl(kernel.PR_CAP_AMBIENT, _AMBIENT_CLEAR_ALL)
    _set_capabilities(0, 0)


def _empty_bounding_set() -> None:
    for capability in range(_CAP_WORDS):
        try:
            kernel.prctl(kernel.PR_CAPBSET_DROP, capability)
        except OSError as error:
            if error.errno != EINVAL:
                raise
            return  # beyond the last capability of this kernel


def _permitted_capabilities() -> int:
    sets = ctypes.create_string_buffer(24)
    kernel.check_result(kernel.LIBC.capget(_capability_header(), sets), "capget")
    _, permitted, _, _, upper, _ = struct.unpack("=6I", sets)
    return int(permitted | upper << 32)


def _set_capabilities(permitted: int, inheritable: int) -> None:
    """Set the capability sets of this process; what is permitted is also effective."""
    # Twice struct __user_cap_data_struct, of the lower and the upper 32 bits: effective, permitted, inheritable.
    low, high = permitted & 0xFFFF_FFFF, permitted >> 32
    sets = struct.pack("=6I", low, low, inheritable, high, high, 0)
    kernel.check_result(kernel.LIBC.capset(_capability_header(), sets), "capset")


def _capability_header() -> ctypes.Array[ctypes.c_char]:
    return ctypes.create_string_buffer(struct.pack("=Ii", _CAPABILITY_VERSION_3, 0), 8)
