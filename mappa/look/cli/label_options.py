"""Options on labels of a log, or of a file beside it, of `mappa import` and `mappa coach eval`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click


def label_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options on labels of guilt, and on the files that hold them, to a command."""
    options = (
        click.option("--guilty-agent", metavar="KEY", help="A label: the name of the agent at fault."),
        click.option("--guilty-step", metavar="KEY", help="A label: the number of the decisive step."),
        click.option("--guilt-reason", metavar="KEY", help="A label: why."),
        click.option("--guilt-category", metavar="KEY", help="A label: what kind of failure it is."),
        click.option(
            "--labels",
            metavar="[NAME=]FILE",
            multiple=True,
            help="Labels of labeller NAME, line by line; may be repeated.",
        ),
        click.option("--labels-of", metavar="KEY", help="The rollout that a line of labels is about."),
        click.option("--labelled-by", metavar="KEY", help="Who labelled, where lines of one file differ in it."),
        click.option(
            "--steps-from",
            type=click.IntRange(0, 1),
            default=0,
            show_default=True,
            help="The number of the first step.",
        ),
        click.option(
            "--steps-of",
            type=click.Choice(["messages", "actions"]),
            default="messages",
            show_default=True,
            help="What steps of labels count.",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function
