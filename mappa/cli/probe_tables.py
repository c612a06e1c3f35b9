"""What a probe found, as a table, sentences and JSON: whether there is something to learn."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.table import Table

from mappa.cli.console import Console, Name
from mappa.cli.formats import format_percent, format_share
from mappa.cli.result_tables import show_evaluation
from mappa.cli.tables import columns_table
from mappa.evaluation.heldout import Evaluation
from mappa.evaluation.probe import Learnability, Probe, ProbedAgent
from mappa_core.redaction import clean_line


def show_probe(console: Console, evaluation: Evaluation, probe: Probe) -> None:
    """Print how often the team and each agent are right, whether siblings differ, and what follows from it."""
    show_evaluation(console, evaluation, f"probed, {probe.samples} samples of each")
    console.print(probe_table(evaluation, probe))
    for name, sentence in probe.describe().items():
        console.print(clean_line(f"{name}: {sentence}"), soft_wrap=True, highlight=False, markup=False)


def probe_table(evaluation: Evaluation, probe: Probe) -> Table:
    """Build a table with a row for the team and per agent."""
    table = columns_table("", "pass@1", f"pass@{probe.samples}", "groups differ", "cut off", "no call")
    table.add_row(f"team, {evaluation.metric}", *_shares(probe.team), "", "")
    for name, agent in probe.agents.items():
        table.add_row(Name(name), *_shares(agent), format_percent(agent.cut_off), format_percent(agent.no_call))
    return table


def _shares(part: Learnability) -> tuple[str, str, str]:
    groups = f"{part.differing} of {part.groups}" if part.groups else "-"
    return format_share(part.pass_at_1), format_share(part.pass_at_k), groups


def probe_json(probe: Probe) -> dict[str, Any]:
    """Convert a probe to JSON values, with each finding in words; shares are 0-1."""
    return {
        "samples": probe.samples,
        "team": _part_json(probe.team, None),
        "agents": {name: _part_json(agent, name) for name, agent in probe.agents.items()},
    }


def _part_json(part: Learnability, agent: str | None) -> dict[str, Any]:
    is_asked = not isinstance(part, ProbedAgent) or part.trained
    return {
        **asdict(part),
        "finding": part.finding if is_asked else None,
        "says": part.describe(agent) if is_asked else None,
    }
