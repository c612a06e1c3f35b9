"""`mappa observe LOG`: read what is new, judge it, show the whole; once, or for as long as the log grows."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from mappa.cli.announce import announce_providers
from mappa.cli.console import Console, Name, echo
from mappa.cli.formats import format_count, format_or_dash, format_percent
from mappa.cli.options import load_registry
from mappa.cli.tables import columns_table
from mappa.look.cli.import_lines import describe_import
from mappa.look.cli.verdict_tables import check_answered, verdict_bar
from mappa_core.redaction import clean_line, clean_name

if TYPE_CHECKING:
    from mappa.look.observe_logs import LogObservation, PlaySums
    from mappa_core import Registry

POLL_S = 2.0
"""Seconds between two looks at a log that is followed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogObserving:
    """Which logs are observed, by which coach, and where their run lies. `settings` are options of the coach. `refresh`
    writes what is new into the logs, before each look at them."""

    paths: Sequence[Path]
    refresh: Callable[[], object]
    coach: str | None
    settings: Sequence[str]
    root: Path
    name: str | None
    examples: int
    trust: bool


def observe_log_files(observing: LogObserving, *, follow: bool, quiet: bool, as_json: bool) -> None:
    """Observe logs and print the result; with `follow` whenever it changes, until the user interrupts it. Raises as
    `observe_logs`, and GuardStop if the coach answered too little."""
    registry = load_registry()
    if follow:
        _follow(registry, observing, quiet=quiet, as_json=as_json)
        return
    console = Console()
    observation = _observe(registry, observing, quiet=quiet or as_json)
    if as_json:
        echo(observation_json(observation))
    else:
        show_observation(console, observation, quiet=quiet)
    _check(observation)


def _check(observation: LogObservation) -> None:
    """Raise GuardStop if too many of the verdicts failed."""
    check_answered([observation.verdicts.counts], observation.verdicts.max_missing)


def _observe(
    registry: Registry,
    observing: LogObserving,
    *,
    quiet: bool,
    waits: bool = False,
    announced: bool = False,
    spent_usd: float = 0.0,
) -> LogObservation:
    from mappa.look.observe_logs import DEFAULT_COACH, observe_logs

    errors = Console(stderr=True)
    with verdict_bar(errors, quiet=quiet or waits) as bar:
        return asyncio.run(
            observe_logs(
                registry,
                observing.paths,
                coach=DEFAULT_COACH if observing.coach is None else observing.coach,
                settings=observing.settings,
                root=observing.root,
                name=observing.name,
                examples=observing.examples,
                trust=observing.trust,
                waits=waits,
                spent_usd=spent_usd,
                on_providers=lambda providers: None if announced else announce_providers(errors, providers),
                on_start=bar.start,
                on_verdict=bar.advance,
            )
        )


def _follow(registry: Registry, observing: LogObserving, *, quiet: bool, as_json: bool) -> None:
    console = Console()
    with Live(console=console, auto_refresh=False, transient=False) as live:
        shown = None
        try:
            for observation in _observations(registry, observing):
                if as_json:
                    echo(observation_json(observation))
                elif console.is_terminal:
                    live.update(_live_table(observation), refresh=True)
                elif shown != observation.sums:
                    console.print(_sums_line(observation), markup=False, highlight=False, soft_wrap=True)
                shown = observation.sums
                _check(observation)
        except KeyboardInterrupt:
            pass  # That is how it ends.


def _observations(registry: Registry, observing: LogObserving) -> Iterator[LogObservation]:
    """An observation whenever files of the logs changed, and once more after it, when plays did not go on."""
    from mappa.look.importing.create_run import NoPlaysError
    from mappa.look.importing.documents import find_files
    from mappa.store.folder import RunInUseError

    seen, is_due, announced, spent_usd = None, True, False, 0.0
    while True:
        observing.refresh()
        files = [(path, path.stat()) for path in find_files(observing.paths, may_lack=True) if path.exists()]
        now = [(path, status.st_size, status.st_mtime_ns, status.st_ino) for path, status in files]
        if files and (is_due or now != seen):
            try:
                observation = _observe(
                    registry, observing, quiet=True, waits=True, announced=announced, spent_usd=spent_usd
                )
                seen, is_due, verdicts = now, observation.imported.trajectories > 0, observation.verdicts
                announced = announced or verdicts.plays > 0
                # The cap holds for as long as the log is followed, not for each look at it.
                spent_usd += (verdicts.usd or 0.0) + verdicts.uncertain_usd
                yield observation
            except (NoPlaysError, RunInUseError):
                is_due = True  # An action may come; another process, as one that labels, will be done.
        time.sleep(POLL_S)


def observation_json(observation: LogObservation) -> str:
    """Encode an observation as one JSON object; shares are 0-1, scores points 0-10, unknown values null."""
    from mappa.look.cli.diagnosis_tables import diagnosis_json

    parts = {
        name: msgspec.to_builtins(getattr(observation, name), enc_hook=str)
        for name in ("folder", "imported", "verdicts", "sums")
    }
    newest = msgspec.Raw(diagnosis_json(observation.diagnosis).encode())
    return msgspec.json.encode({**parts, "newest": newest}).decode()


def show_observation(console: Console, observation: LogObservation, *, quiet: bool) -> None:
    """Print what is new, what came of all plays, and the newest with reasons."""
    from mappa.look.cli.diagnosis_tables import show_diagnosis, show_examples

    folder = shlex.quote(str(observation.folder))
    if not quiet:
        for line, style in _news(observation):
            console.print(clean_line(line), markup=False, highlight=False, soft_wrap=True, style=style)
    console.print(f"run      {folder}", soft_wrap=True, highlight=False, markup=False)
    sums, newest = observation.sums, observation.diagnosis
    if sums.plays <= newest.rollouts:
        show_diagnosis(console, newest)
        return
    console.print(_sums_line(observation), markup=False, highlight=False, soft_wrap=True)
    console.print(_sums_table(sums))
    console.print(f"\n[bold]the newest {newest.rollouts:,} plays[/]", highlight=False)
    show_examples(console, newest)
    console.print(f"next     mappa runs trace {folder} ID", soft_wrap=True, highlight=False, markup=False)
    console.print(f"all      mappa observe {folder}", soft_wrap=True, highlight=False, markup=False)


def _news(observation: LogObservation) -> Iterator[tuple[str, str | None]]:
    """Lines on what was read and judged now, with their style."""
    imported, verdicts = observation.imported, observation.verdicts
    if imported.trajectories:
        yield from describe_import(imported)
    else:
        yield "nothing new was written", None
        yield from ((line, "yellow") for line in imported.unfinished)
    if verdicts.plays:
        counts = verdicts.counts
        cost = (
            "; their cost is unknown" if verdicts.usd is None else f" for ${verdicts.usd:.4f}" if verdicts.usd else ""
        )
        yield (
            f"{clean_name(verdicts.coach)}: {counts.verdicts:,} verdicts on {format_count(verdicts.plays, 'new play')} "
            f"({counts.scored:,} scored, {counts.abstained:,} abstained, {counts.failed:,} failed){cost}",
            None,
        )
    if verdicts.counts.failed:
        yield "the same command asks again for the verdicts that failed", "yellow"


def _sums_line(observation: LogObservation) -> str:
    sums = observation.sums
    plays = format_count(sums.plays, "play")
    if sums.known:
        said = (
            f"{plays}: correct {format_percent(sums.success)} of {sums.known:,}, {sums.unsuccessful:,} did not succeed"
        )
    else:
        said = f"{plays} of which no outcome is known"
    blamed = ", ".join(f"{clean_name(one.agent)} {one.blamed:,}" for one in sums.agents if one.blamed)
    others = "".join(f", the {name} {count:,}" for name, count in sums.blamed_others.items())
    left = f"; {sums.looked_at - sums.judged:,} are not judged yet" if sums.judged < sums.looked_at else ""
    return (
        f"{said}; to blame: {blamed or 'nobody'}{others}; cannot tell in {sums.cannot_tell:,} of {sums.judged:,}{left}"
    )


def _sums_table(sums: PlaySums) -> Table:
    from mappa.look.counted_verdicts import LOW_SCORE

    table = columns_table("", "actions", "score", f"below {LOW_SCORE:g}", "to blame")
    for one in sums.agents:
        table.add_row(
            Name(one.agent),
            f"{one.actions:,}",
            format_or_dash(one.score, ".1f"),
            f"{one.low:,} of {one.scored:,}" if one.scored else "-",
            f"{one.blamed:,} of {sums.looked_at:,}" if sums.looked_at else "-",
        )
    return table


def _live_table(observation: LogObservation) -> Group:
    """What a terminal shows while a log is followed."""
    lines: list[RenderableType] = [Text(clean_line(_sums_line(observation))), _sums_table(observation.sums)]
    for agent in observation.diagnosis.agents:
        for example in agent.examples[:1]:
            lines.append(Text(clean_line(f"{example.score:g}  {agent.agent}  {example.step}"), style="bold"))
            lines.append(Text(clean_line(f"   {example.reasoning}")))
    lines += [Text(clean_line(line), style="yellow") for line in observation.imported.unfinished]
    lines.append(Text(f"run      {observation.folder}; Ctrl-C ends it", style="dim"))
    return Group(*lines)
