"""The commands `mappa mathchat prepare` and `mappa mathchat warm-start`."""

import click

from mappa_mathchat.prepare import prepare
from mappa_mathchat.tiny.warm_start import warm_start


@click.group("mathchat")
def command() -> None:
    """Make the published data sets of MathChat, and the small model of its `tiny` recipe."""


command.add_command(prepare)
command.add_command(warm_start)
