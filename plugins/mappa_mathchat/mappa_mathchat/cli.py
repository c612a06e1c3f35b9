"""The commands `mappa mathchat prepare`, `mappa mathchat examples` and `mappa mathchat warm-start`."""

import click

from mappa_mathchat.examples import examples
from mappa_mathchat.prepare import prepare
from mappa_mathchat.tiny.warm_start import warm_start


@click.group("mathchat")
def command() -> None:
    """Make the published data sets of MathChat, examples for a warm start, and the model of the `tiny` recipe."""


command.add_command(prepare)
command.add_command(examples)
command.add_command(warm_start)
