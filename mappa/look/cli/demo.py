"""`mappa demo`: show a shipped run in the browser, so that one sees what a run is before one has any."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import click

from mappa.cli.console import Console
from mappa.look.cli.browser import serve_runs


@click.command("demo")
@click.option(
    "--to", "root", metavar="FOLDER", type=click.Path(path_type=Path), help="Keep the run in this folder; show nothing."
)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port of this machine; any free one by default.")
@click.option("--open", "opens", is_flag=True, help="Open the page in the default browser.")
def command(root: Path | None, port: int, opens: bool) -> None:
    """Show a play that failed, and who is to blame; it comes with Mappa.

    Three agents solved problems in words and began to learn; nothing is trained here. The page is one of `mappa view`:
    only this machine can connect. With --to the run is written there, for runs trace, observe, report and judge;
    judge needs mappa-mathchat, too.
    """
    from mappa.look.demo import unpack_demo
    from mappa.look.view.web.telling import telling_address

    if root is not None:
        folder = unpack_demo(root)
        text = f"run      {folder}\nnext     mappa view {folder}"
        Console().print(text, markup=False, highlight=False, soft_wrap=True)
        return
    with TemporaryDirectory(prefix="mappa-demo-") as temporary:
        folder = unpack_demo(Path(temporary))
        what = "a play of three agents that failed, and who is to blame:"
        serve_runs([folder], what, port=port, opens=opens, page=telling_address(folder))
