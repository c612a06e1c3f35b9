"""The logs that words of a command line name: files, folders, addresses of tracers, whose traces are pulled, and what
is received over OTLP."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mappa.cli.console import Console
from mappa.cli.formats import format_count
from mappa_core import InputError

PULL_S = 30.0
"""Seconds between two pulls of an address that is followed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLogs:
    """Where logs lie. `refresh` writes what is new into them."""

    paths: Sequence[Path]
    refresh: Callable[[], object]


def is_address(word: str) -> bool:
    """Whether a word is the address of a tracer rather than the path of a file or a setting."""
    return "://" in word.partition("=")[0]


def find_logs(words: Sequence[str], root: Path) -> list[Path]:
    """Find the files and folders. What an address chooses is pulled into `root`, and said on standard error.

    Raises:
        InputError: an address, or the server there, is not as it should be.
    """
    return [_pull(word, root) if is_address(word) else Path(word) for word in words]


@contextmanager
def open_logs(words: Sequence[str], root: Path, *, otlp: int | None) -> Iterator[OpenLogs]:
    """Open logs that may grow: with a port, what is received there. Raises as `find_logs`, and ConfigError if the port
    is taken."""
    if otlp is None:
        yield OpenLogs(paths=find_logs(words, root), refresh=_Pulling([one for one in words if is_address(one)], root))
        return
    with _receive(otlp, root) as logs:
        yield logs


class _Pulling:
    """Pulls again from time to time."""

    def __init__(self, addresses: Sequence[str], root: Path) -> None:
        self._addresses, self._root, self._next = addresses, root, time.monotonic() + PULL_S

    def __call__(self) -> None:
        if self._addresses and time.monotonic() >= self._next:
            for address in self._addresses:
                _pull(address, self._root, quiet=True)
            self._next = time.monotonic() + PULL_S


@contextmanager
def _receive(port: int, root: Path) -> Iterator[OpenLogs]:
    from mappa.look.tracers.pull import FOLDER
    from mappa.look.tracers.received_traces import ReceivedTraces

    try:
        from mappa.look.tracers.otlp_receiver import OtlpReceiver
    except ImportError as error:
        raise InputError(
            f'--otlp needs libraries that are not installed ({error}): pip install "mappa[otlp]"'
        ) from error
    traces = ReceivedTraces(root / FOLDER / "otlp")
    with OtlpReceiver(traces, port=port) as receiver:
        told = f"waiting for spans at {receiver.url}; Ctrl-C ends it"
        Console(stderr=True).print(told, markup=False, highlight=False, soft_wrap=True)
        yield OpenLogs(paths=[root / FOLDER / "otlp"], refresh=traces.settle)


def _pull(address: str, root: Path, *, quiet: bool = False) -> Path:
    from mappa.look.tracers.pull import pull_traces

    errors = Console(stderr=True, quiet=quiet)
    with errors.status("pulling traces") as status:
        pull = pull_traces(
            address, root, on_trace=lambda count: status.update(f"pulling traces: {format_count(count, 'trace')}")
        )
    told = format_count(pull.read, "trace")
    told += f", {pull.known:,} were there" if pull.known else ""
    told += f", {pull.open:,} have not ended yet" if pull.open else ""
    errors.print(f"pulled   {told}: {pull.folder}", markup=False, highlight=False, soft_wrap=True)
    return pull.folder
