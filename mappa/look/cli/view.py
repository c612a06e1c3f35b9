"""`mappa view`: show runs in the browser, live while they train."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from mappa.cli.console import Console


@click.command("view")
@click.argument("runs", metavar="[RUN]...", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="Port of this machine; any free one unless named."
)
@click.option("--open", "opens", is_flag=True, help="Open the page in the default browser.")
def command(runs: Sequence[Path], port: int, opens: bool) -> None:
    """Show runs in the browser, live while they train.

    RUN is a run folder, or a folder of runs; `runs` unless named. Only this machine can connect, with the token in the
    address that is printed. From elsewhere: ssh -L PORT:127.0.0.1:PORT HOST.
    """
    try:
        from mappa.look.view.web.server import serve
    except ModuleNotFoundError as error:
        from mappa_core import ConfigError

        if error.name not in ("starlette", "uvicorn"):
            raise
        raise ConfigError('mappa view needs what comes with: pip install "mappa[view]"') from error
    from mappa.look.view.web.run_folders import RunFolders

    console = Console()

    def announce(address: str) -> None:
        console.print(f"runs at {address}\nCtrl-C ends it.", markup=False, highlight=False, soft_wrap=True)
        if opens:
            click.launch(address)

    serve(RunFolders(runs or [Path("runs")]), port=port, announce=announce)
