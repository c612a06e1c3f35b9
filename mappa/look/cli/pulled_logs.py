"""The logs that words of a command line name: files, folders, and addresses of tracers, whose traces are pulled."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mappa.cli.console import Console
from mappa.cli.formats import format_count


def find_logs(words: Sequence[str], root: Path) -> list[Path]:
    """Find the files and folders. What an address chooses is pulled into `root`, and said on standard error.

    Raises:
        InputError: an address, or the server there, is not as it should be.
    """
    return [_pull(word, root) if "://" in word else Path(word) for word in words]


def _pull(address: str, root: Path) -> Path:
    from mappa.look.tracers.pull import pull_traces

    errors = Console(stderr=True)
    with errors.status("pulling traces") as status:
        pull = pull_traces(
            address, root, on_trace=lambda count: status.update(f"pulling traces: {format_count(count, 'trace')}")
        )
    told = format_count(pull.read, "trace")
    told += f", {pull.known:,} were there" if pull.known else ""
    told += f", {pull.open:,} have not ended yet" if pull.open else ""
    errors.print(f"pulled   {told}: {pull.folder}", markup=False, highlight=False, soft_wrap=True)
    return pull.folder
