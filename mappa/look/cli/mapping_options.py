"""Options that say what the keys of a log mean, of `mappa import`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from mappa.look.cli.label_options import label_options
from mappa_core import ConfigError

if TYPE_CHECKING:
    from mappa.look.importing import LogMapping


def mapping_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say what the keys of a log mean, and those on labels, to a command; it receives them as
    `mapping`, and the files of `--labels` as `labels`."""

    @wraps(function)
    def command(**given: Any) -> None:
        # Imported here, so that `--help` stays quick.
        from mappa.look.importing import LogMapping

        chosen = {field.name: given.pop(field.name) for field in fields(LogMapping) if field.name in given}
        function(mapping=_build_mapping(**chosen), **given)

    decorators = (
        click.option(
            "--agent", "agents", metavar="NAME[=BRIEF]", multiple=True, help="Who acts, and what for; may be repeated."
        ),
        click.option("--agent-from", metavar="KEY", help="Who speaks: a key of a message; of spans an attribute."),
        click.option(
            "--person",
            "persons",
            metavar="NAME",
            multiple=True,
            help="A named speaker that is no agent; may be repeated.",
        ),
        click.option(
            "--unnamed",
            "default_agent",
            metavar="NAME",
            default="assistant",
            show_default=True,
            help="Who acts where none is named.",
        ),
        click.option("--messages", metavar="KEY", default="messages", show_default=True, help="The list of messages."),
        click.option("--text", metavar="KEY", default="content", show_default=True, help="The text of a message."),
        click.option("--prompt", metavar="KEY", help="The text of the task; else the first message of a user."),
        click.option("--task-id", metavar="KEY", help="The name of the task; else one is made of its text."),
        click.option("--truth", metavar="KEY", help="The known answer; no agent and, unless asked, no coach sees it."),
        click.option("--stratum", metavar="KEY", help="What groups tasks in reports."),
        click.option("--cluster", metavar="KEY", help="What tasks have in common that are no independent evidence."),
        click.option(
            "--outcome",
            "outcomes",
            metavar="[NAME=]KEY",
            multiple=True,
            help="A number; by default it is `correct`, within 0..1.",
        ),
        label_options,
        click.option(
            "--step-values", metavar="KEY", help="Labels: 1, 0 or -1 by number of message, or one for each action."
        ),
    )
    for decorate in reversed(decorators):
        command = decorate(command)
    return command


def _build_mapping(
    *, agents: Sequence[str], persons: Sequence[str], outcomes: Sequence[str], **keys: Any
) -> LogMapping:
    """The mapping of the options; `keys` are those that it holds as they are given. Raises ConfigError for a word that
    is not NAME=VALUE, or a name that is given twice."""
    from mappa.look.importing import LogMapping
    from mappa.look.importing.log_mapping import PERSONS

    return LogMapping(
        agents=_parse_pairs(agents, "--agent", value_may_lack=True),
        persons=(*PERSONS, *(name.casefold() for name in persons)),
        outcomes=_parse_pairs([word if "=" in word else f"correct={word}" for word in outcomes], "--outcome"),
        **keys,
    )


def _parse_pairs(words: Sequence[str], option: str, *, value_may_lack: bool = False) -> dict[str, str]:
    """Parse NAME=VALUE words. Raises ConfigError for a word without a name, or a duplicate name."""
    pairs: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not name or (equals and not value) or (not equals and not value_may_lack):
            raise ConfigError(f"{option} {word}: write NAME=VALUE")
        if name in pairs:
            raise ConfigError(f"{option} {word}: {name} is named already")
        pairs[name] = value
    return pairs
