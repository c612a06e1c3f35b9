"""`mappa demo`: show a shipped run in the browser, so that one sees what a run is before one has any."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import click

from mappa.cli.console import Console


@click.command("demo")
@click.option(
    "--to", "root", metavar="FOLDER", type=click.Path(path_type=Path), help="Keep the run in this folder; show nothing."
)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port of this machine; any free one by default.")
@click.option("--open", "opens", is_flag=True, help="Open the page in the default browser.")
def command(root: Path | None, port: int, opens: bool) -> None:
    """Show a play that failed, and who is to blame; it comes with Mappa.

    Three agents solved problems in words and began to learn; nothing is trained here. The page is one of `mappa view`:
    only this machine can connect. With --to the run is written there, for runs trace, report and judge; observe needs
    mappa-mathchat, too.
    """
    from mappa.look.demo import unpack_demo

    console = Console()
    if root is not None:
        folder = unpack_demo(root)
        console.print(f"run      {folder}\nnext     mappa view {folder}", markup=False, highlight=False, soft_wrap=True)
        return
    with TemporaryDirectory(prefix="mappa-demo-") as temporary:
        _show(console, unpack_demo(Path(temporary)), port, opens)


def _show(console: Console, folder: Path, port: int, opens: bool) -> None:
    from mappa.look.view.web.run_folders import RunFolders
    from mappa.look.view.web.server import serve
    from mappa.look.view.web.telling import telling_address

    def announce(address: str) -> None:
        console.print(
            f"a play of three agents that failed, and who is to blame: {address}\nCtrl-C ends it.",
            markup=False, highlight=False, soft_wrap=True,
        )  # fmt: skip
        if opens:
            click.launch(address)

    serve(RunFolders([folder]), port=port, announce=announce, page=telling_address(folder))
