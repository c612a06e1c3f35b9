"""`mappa view`: show runs in the browser, live while they train."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from mappa.look.cli.browser import serve_runs
from mappa_core import ConfigError


@click.command("view")
@click.argument("runs", metavar="[RUN]...", nargs=-1, type=click.Path(path_type=Path))
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port of this machine; any free one by default.")
@click.option("--open", "opens", is_flag=True, help="Open the page in the default browser.")
@click.option("--label", "labels", is_flag=True, help="Ask on each play's page who failed, and keep that in its run.")
@click.option("--labeller", metavar="NAME", help="With --label: who labels; by default who is logged in.")
def command(runs: Sequence[Path], port: int, opens: bool, labels: bool, labeller: str | None) -> None:
    """Show runs in the browser, live while they train.

    RUN is a run folder, or a folder of runs; `runs` by default. Only this machine can connect, with the token in the
    address that is printed. From elsewhere: ssh -L PORT:127.0.0.1:PORT HOST. Nothing is written but an index for the
    search and, with --label, the labels that are given on its pages.
    """
    if labeller is not None and not labels:
        raise ConfigError("--labeller belongs to --label")
    name = None
    if labels:
        from mappa.look.labelling import login_name

        name = login_name() if labeller is None else labeller
    serve_runs(runs or [Path("runs")], "runs at", port=port, opens=opens, labeller=name)
