"""`mappa coach crash-test`: plant known faults in plays that succeeded, and count which of them the coach finds."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import click
import msgspec
from rich.table import Table

from mappa.cli.announce import announce_providers
from mappa.cli.common_options import json_option, quiet_option
from mappa.cli.console import Console, echo, escape
from mappa.cli.formats import format_percent
from mappa.cli.options import ConfigArguments, load_registry, recipe_options
from mappa.cli.progress import rollout_bar
from mappa.look.cli.verdict_tables import make_table
from mappa_core.redaction import clean_line

if TYPE_CHECKING:
    from mappa.look.crash_test.crash_test import CrashTest
    from mappa.look.crash_test.figures import FoundRate
    from mappa_core.records import Interval

MAX_LISTED = 5
TEMPERATURE = 0.2


@click.command("crash-test")
@recipe_options
@click.option("--plays", metavar="N", type=click.IntRange(1), default=64, show_default=True, help="Tasks to play.")
@click.option(
    "--samples",
    metavar="N",
    type=click.IntRange(1),
    default=4,
    show_default=True,
    help="Plays per kind of fault and agent.",
)
@quiet_option
@json_option
def crash_test_command(arguments: ConfigArguments, plays: int, samples: int, quiet: bool, as_json: bool) -> None:
    """Crash-test a coach: does it find faults that were planted?

    A team plays held-out tasks. In plays that succeed, with no failing call and no broken contract, one action at a
    time is made faulty (a wrong number, a dropped file, a stale answer, …), the rest is played live, and the coach of
    the config is asked who is to blame. A trained team is one word: policies.default.from=RUN@last. It plays at a
    temperature of 0.2 unless eval.temperature says otherwise, as slips of sampling are faults that nobody planted.
    """
    from mappa.look.crash_test.crash_test import CrashSize, run_crash_test

    registry = load_registry()
    composed = arguments.compose(registry, f"eval.temperature={TEMPERATURE}")
    errors = Console(stderr=True)
    with rollout_bar(errors, quiet=quiet or as_json) as bar:
        bar.start(plays)
        tested = asyncio.run(
            run_crash_test(
                composed,
                registry,
                CrashSize(plays=plays, samples=samples),
                on_providers=lambda providers: announce_providers(errors, providers),
                on_play=bar.on_rollout_end,
            )
        )
    if as_json:
        echo(msgspec.json.encode(msgspec.to_builtins(tested, enc_hook=str)).decode())
    else:
        show_crash_test(Console(), tested)


def show_crash_test(console: Console, tested: CrashTest) -> None:
    """Print the whole result."""
    for line in _facts(tested):
        console.print(line, soft_wrap=True, highlight=False, markup=False)
    figures = tested.figures
    console.print(_table("", {"all": figures.overall}))
    console.print(_table("fault", figures.by_kind))
    console.print(_table("agent", figures.by_agent))
    for reason, times in figures.left_out.items():
        console.print(f"{times:7,} x {clean_line(reason)}", markup=False, highlight=False, soft_wrap=True)
    console.print(
        f"next     mappa runs show {tested.folder} --split counterfactual",
        soft_wrap=True,
        highlight=False,
        markup=False,
    )


def _facts(tested: CrashTest) -> Iterator[str]:
    figures = tested.figures
    yield (
        f"{figures.coach}: {len(tested.planted):,} plays with a fault of {figures.kinds} kinds, planted in "
        f"{figures.faultless:,} faultless ones ({figures.succeeded:,} of {figures.plays:,} plays succeeded)"
    )
    blamed = figures.blamed_faultless
    yield f"blamed where nothing was planted: {len(blamed):,} of {figures.faultless:,} plays"
    yield from (f"  mappa runs trace {tested.folder} {name}" for name in blamed[:MAX_LISTED])
    yield "found is of plays that the fault broke; absorbed ones changed and succeeded; intervals are of 95 %, by task"


def _table(title: str, rates: Mapping[str, FoundRate]) -> Table:
    table = make_table(
        title, "broke", "agent found, %", "chance", "step found, %", "chance", "absorbed", "unchanged", "noticed"
    )
    for name, rate in rates.items():
        table.add_row(
            escape(name),
            f"{rate.plays:,}",
            _interval(rate.agent),
            _percent(rate.agent_by_chance),
            _interval(rate.step),
            _percent(rate.step_by_chance),
            f"{rate.absorbed:,}",
            f"{rate.unchanged:,}",
            f"{rate.noticed:,}",
        )
    return table


def _interval(value: Interval | None) -> str:
    if value is None:
        return "-"
    if value.low is None or value.high is None:
        return f"{100 * value.mean:.1f}"
    return f"{100 * value.mean:.1f} [{100 * value.low:.1f}, {100 * value.high:.1f}]"


def _percent(value: float | None) -> str:
    return "-" if value is None else format_percent(value)
