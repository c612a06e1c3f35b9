"""What an import came to, in lines that `mappa import` and `mappa observe` print."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mappa.cli.formats import format_count

if TYPE_CHECKING:
    from mappa.look.importing import ImportResult

MAX_SHOWN = 8
"""Maximum number of agents, and of things that were not understood, that are printed."""


def describe_import(imported: ImportResult) -> Iterator[tuple[str, str | None]]:
    """Lines on what was imported, what was not and why, each with its style."""
    counts, labels = imported.counts, imported.labels
    if imported.trajectories or imported.is_new:
        yield from _describe_plays(imported)
    else:
        yield "nothing new was written", None
    if labels.agents or labels.steps:
        yield f"labels: the guilty agent of {labels.agents:,} rollouts, the decisive step of {labels.steps:,}", None
    if labels.values:
        values = ", ".join(f"{count:,} are {value}" for value, count in labels.values.items())
        steps = sum(labels.values.values())
        yield f"labels: {steps:,} steps, of which {values}; the whole of {labels.wholes:,} rollouts", None
    for what, count in labels.odd.items():
        yield f"in {count:,} rollouts {what}", "yellow"
    if counts.without_text:
        yield (
            f"{counts.without_text:,} rollouts have labels and no text: only verdicts that were recorded elsewhere can "
            "be held against them",
            "yellow",
        )
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
    yield (
        f"{counts.entries:,} {counts.unit}: {counts.actions:,} actions"
        + "".join(f", {count:,} {why}" for why, count in counts.left_out.items()),
        None,
    )
    agents = [f"{agent} {count:,}" for agent, count in imported.agents.items()]
    more = f" and {len(agents) - MAX_SHOWN:,} more" if len(agents) > MAX_SHOWN else ""
    yield f"actions: {', '.join(agents[:MAX_SHOWN])}{more}", None
