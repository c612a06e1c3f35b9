"""`mappa view`: show runs in the browser, live while they train."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from mappa.look.cli.browser import serve_runs


@click.command("view")
@click.argument("runs", metavar="[RUN]...", nargs=-1, type=click.Path(path_type=Path))
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port of this machine; any free one by default.")
@click.option("--open", "opens", is_flag=True, help="Open the page in the default browser.")
def command(runs: Sequence[Path], port: int, opens: bool) -> None:
    """Show runs in the browser, live while they train.

    RUN is a run folder, or a folder of runs; `runs` by default. Only this machine can connect, with the token in the
    address that is printed. From elsewhere: ssh -L PORT:127.0.0.1:PORT HOST.
    """
    serve_runs(runs or [Path("runs")], "runs at", port=port, opens=opens)
