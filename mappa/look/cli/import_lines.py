"""What an import came to, in lines that `mappa import` and `mappa observe` print."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from mappa.cli.formats import format_count

if TYPE_CHECKING:
    from mappa.look.importing import ImportResult
    from mappa.look.importing.ledger import Ledger

MAX_SHOWN = 8
"""Maximum number of agents, and of things that were not understood, that are printed."""


def describe_import(imported: ImportResult) -> Iterator[tuple[str, str | None]]:
    """Lines on what was imported, what was not and why, each with its style."""
    counts, labels = imported.counts, imported.labels
    if imported.trajectories or imported.is_new:
        yield from _describe_plays(imported)
        yield from ((line, None) for line in _describe_ledgers(imported.ledgers))
    else:
        yield "nothing new was written", None
    if labels.agents or labels.steps:
        agents = format_count(labels.agents, "rollout")
        yield f"labels: the guilty agent of {agents}, the decisive step of {labels.steps:,}", None
    if labels.values:
        steps = format_count(sum(labels.values.values()), "step")
        wholes = format_count(labels.wholes, "rollout")
        yield f"labels: {steps} with {_describe_counts(labels.values)}; the whole of {wholes}", None
    for what, count in labels.odd.items():
        yield f"in {format_count(count, 'rollout')} {what}", "yellow"
    if counts.without_text:
        textless = format_count(counts.without_text, "rollout")
        yield f"labels without a text: {textless}; only verdicts recorded elsewhere can be held against them", "yellow"
    if counts.without_action:
        yield f"left out: {format_count(counts.without_action, 'rollout')} without an action", "yellow"
    for problem in imported.problems[:MAX_SHOWN]:
        yield problem, "yellow"
    if len(imported.problems) > MAX_SHOWN:
        yield f"{len(imported.problems) - MAX_SHOWN:,} more like these (--json has all)", "yellow"
    for line in imported.unfinished[:MAX_SHOWN]:
        yield line, "yellow"


def _describe_plays(imported: ImportResult) -> Iterator[tuple[str, str | None]]:
    counts = imported.counts
    new, tasks = imported.trajectories - imported.went_on, format_count(imported.tasks, "task")
    rollouts = format_count(new, "rollout" if imported.is_new else "new rollout")
    went_on = f"; {format_count(imported.went_on, 'rollout')} went on since" if imported.went_on else ""
    yield f"{rollouts} of {tasks} from {imported.format}{went_on}", None
    entries = format_count(counts.entries, counts.unit.removesuffix("s"))
    yield f"{entries}: {format_count(counts.actions, 'action')}", None
    if counts.left_out:
        yield f"no action: {_describe_counts(counts.left_out)}", None
    agents = [f"{agent} {count:,}" for agent, count in imported.agents.items()]
    more = f" and {len(agents) - MAX_SHOWN:,} more" if len(agents) > MAX_SHOWN else ""
    yield f"actions: {', '.join(agents[:MAX_SHOWN])}{more}", None


def _describe_ledgers(ledgers: Mapping[str, Ledger]) -> Iterator[str]:
    """What the files came to in the run, and what is not in it, or not as it was written."""
    found = [
        format_count(sum(getattr(ledger, f"{what}s") for ledger in ledgers.values()), what)
        for what in ("text", "thought", "call", "result")
    ]
    yield f"read: {', '.join(found)}"
    notes = Counter[str]()
    for ledger in ledgers.values():
        notes.update(ledger.notes)
    if notes:
        yield f"left out or changed: {_describe_counts(dict(notes.most_common()))}"


def _describe_counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{what} ({count:,})" for what, count in counts.items())
