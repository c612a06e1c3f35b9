"""Serves pages of runs on this machine, for `mappa view` and `mappa demo`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from mappa.cli.console import Console
from mappa_core import ConfigError

PACKAGES = ("starlette", "uvicorn")
"""What the extra `view` brings."""


def serve_runs(
    runs: Sequence[Path], what: str, *, port: int, opens: bool, page: str = "/", labeller: str | None = None
) -> None:
    """Serve pages of `runs` until it is interrupted, and print the address of `page`, which shows `what`; with `opens`
    a browser shows it. `labeller` may label plays there; None: nothing is written.

    Raises ConfigError if the packages are not installed, or for paths that hold no run.
    """
    try:
        from mappa.look.view.web.server import serve
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in PACKAGES:
            raise
        raise ConfigError('pages of runs need starlette and uvicorn: pip install "mappa[view]"') from error
    from mappa.look.view.web.run_folders import RunFolders

    console = Console()

    def announce(address: str) -> None:
        console.print(f"{what} {address}\nCtrl-C ends it.", markup=False, highlight=False, soft_wrap=True)
        if opens:
            click.launch(address)

    serve(RunFolders(runs), port=port, announce=announce, page=page, labeller=labeller)
