"""Signals as bytes of a descriptor, so that one poll waits for them and for all else."""

from __future__ import annotations

import os
import signal


def open_signal_pipe(*signals: int) -> int:
    """Return a descriptor from which the numbers of received signals can be read, one byte each."""
    readable, writable = os.pipe()
    os.set_blocking(readable, False)
    os.set_blocking(writable, False)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)  # a full pipe wakes a poll as well as one byte more
    for number in signals:
        signal.signal(number, lambda *_: None)  # Python writes the bytes of signals with a handler alone
    return readable


def reset_signals(*signals: int) -> None:
    signal.set_wakeup_fd(-1)
    for number in signals:
        signal.signal(number, signal.SIG_DFL)
