"""`mappa plan`: estimate the resources of a recipe, before anything starts."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
from rich.table import Table

from mappa.cli.common_options import json_option
from mappa.cli.console import Console, Name, echo, escape
from mappa.cli.formats import format_count
from mappa.cli.options import ConfigArguments, load_registry, recipe_options
from mappa.cli.tables import columns_table
from mappa_core import ConfigError

if TYPE_CHECKING:
    from mappa.look.plan import CoachAssignment, PlannedAmount, RunPlan, Workload
    from mappa_core.engine import Machine

GB = 1_000_000_000
WORKLOAD_LABELS = {
    "trajectories": "trajectories",
    "actions": "actions",
    "sampled_tokens": "tokens sampled",
    "prompt_tokens": "tokens of prompts",
    "tool_calls": "calls of tools",
    "verdicts": "verdicts",
    "coach_calls": "calls of coaches",
    "coach_prompt_tokens": "  tokens in",
    "coach_completion_tokens": "  tokens out",
    "coach_usd": "  US dollars",
    "api_calls": "calls of policies",
    "api_prompt_tokens": "  tokens in",
    "api_completion_tokens": "  tokens out",
    "api_usd": "  US dollars",
}


@click.command("plan")
@recipe_options
@click.option("--gpus", metavar="N", type=click.IntRange(1), help="GPUs of each node, for the engine `cluster`.")
@click.option("--gpu-memory", metavar="GB", type=click.FloatRange(1.0), help="Memory of each of them, in 10^9 bytes.")
@click.option("--memory", metavar="GB", type=click.FloatRange(1.0), help="Memory of each node itself.")
@click.option("--nodes", metavar="N", type=click.IntRange(1), default=1, show_default=True, help="How many nodes.")
@click.option(
    "--from", "previous", metavar="RUN", type=click.Path(path_type=Path), help="Take what this run has measured."
)
@json_option
def command(
    arguments: ConfigArguments,
    gpus: int | None,
    gpu_memory: float | None,
    memory: float | None,
    nodes: int,
    previous: Path | None,
    as_json: bool,
) -> None:
    """Show what a recipe takes: memory, tokens, calls, money, time. Starts nothing.

    It needs no key. Without --gpus it plans for this machine, and names all that is missing here. Without --from RUN
    most figures are bounds by the recipe, and time is not known.
    """
    from mappa.look.plan import plan_run

    registry = load_registry()
    machines = _machines(gpus, gpu_memory, memory, nodes)
    planned = asyncio.run(plan_run(arguments.compose(registry), registry, machines, previous=previous))
    if as_json:
        echo(msgspec.json.encode(plan_json(planned)).decode())
    else:
        show_plan(Console(), planned)


def _machines(gpus: int | None, gpu_memory: float | None, memory: float | None, nodes: int) -> list[Machine]:
    """Machines of the cluster, none for this one; several without GPUs have as many CPUs as this machine."""
    from mappa_core.engine import Machine

    if gpus is None and gpu_memory is None and memory is None and nodes == 1:
        return []
    if (gpus is None) != (gpu_memory is None):
        raise ConfigError("--gpus N and --gpu-memory GB go together: memory is planned for each GPU")
    cpus, gpu_bytes, own = os.cpu_count() or 1, round((gpu_memory or 0.0) * GB), round((memory or 0.0) * GB)
    return [
        Machine(host=f"node{number}", cpus=cpus, gpus=gpus or 0, gpu_bytes=gpu_bytes, memory_bytes=own)
        for number in range(1, nodes + 1)
    ]


def show_plan(console: Console, planned: RunPlan) -> None:
    """Print agents and coaches, memory, work, cost and time."""
    console.print(f"[bold]{escape(planned.recipe)}[/]", highlight=False)
    console.print(_team(planned))
    _show_memory(console, planned)
    console.print(_work(planned))
    hours = "not known" if planned.hours is None else f"about {_format_hours(planned.hours.value)}"
    console.print(
        f"the run: {format_count(planned.iterations, 'iteration')}, {format_count(planned.evaluations, 'evaluation')}; "
        f"cost {_number(planned.run.usd, '$,.2f')}; wall time {hours}",
        highlight=False,
    )
    for note in planned.notes:
        console.print(note, style="yellow", markup=False, highlight=False, soft_wrap=True)
    if planned.problems:
        console.print("before it can start here:", style="yellow")
    for problem in planned.problems:
        console.print(f"- {problem}", style="yellow", markup=False, highlight=False, soft_wrap=True)


def _team(planned: RunPlan) -> Table:
    """Build a table with a row per agent; policies are shown if their names differ from the agents'."""
    named = any(player.policy != player.agent for player in planned.agents)
    rows = [("agent", *(["policy"] if named else []), "kind", "model", "judged by")]
    for player in planned.agents:
        judges = ", ".join(_judge(one) for one in planned.coaches if player.agent in one.agents)
        policy = [player.policy] if named else []
        rows.append((player.agent, *policy, player.kind, player.model, judges or "nobody"))
    table = columns_table(*rows[0], text=len(rows[0]))
    for row in rows[1:]:
        table.add_row(*map(Name, row))
    return table


def _judge(one: CoachAssignment) -> str:
    when = "" if one.phase == "live" else ", in hindsight"
    if one.asks is None:
        return f"{one.coach} (what it asks is not known){when}"
    providers = ", ".join(f"{provider.name} {provider.model}".rstrip() for provider in one.asks)
    if len(one.asks) == 1:
        return f"{providers}{when}"
    return f"{one.coach} of {providers}{when}" if providers else f"{one.coach}{when}"


def _show_memory(console: Console, planned: RunPlan) -> None:
    memory = planned.memory
    if memory.unknown is not None:
        console.print(f"memory is not known: {memory.unknown}", style="yellow", highlight=False, soft_wrap=True)
    for table in memory.tables:
        console.print(_plain(table))
    for line in (*memory.lines, *([] if planned.checkpoints is None else [planned.checkpoints.text])):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    for note in memory.notes:
        console.print(note, style="yellow", markup=False, highlight=False, soft_wrap=True)


def _plain(rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=None, header_style="dim")
    for name in rows[0]:
        table.add_column(escape(name), overflow="fold")
    for row in rows[1:]:
        table.add_row(*map(escape, row))
    return table


def _work(planned: RunPlan) -> Table:
    """Build a table with a row per figure that is not zero."""
    from mappa.look.plan import Workload

    columns = {
        "one iteration": planned.iteration if planned.iterations else None,
        "replayed": planned.counterfactual if planned.iterations and planned.counterfactual != Workload() else None,
        "training": planned.iteration * planned.iterations if planned.iterations else None,
        "one evaluation": planned.evaluation,
        "the run": planned.run,
    }
    shown = {name: work for name, work in columns.items() if work is not None}
    table = Table(box=None, header_style="dim")
    table.add_column("")
    for name in shown:
        table.add_column(name, justify="right")
    for figure, label in WORKLOAD_LABELS.items():
        amounts = [getattr(work, figure) for work in shown.values()]
        if any(amount is None or amount.value for amount in amounts):
            table.add_row(
                label, *(_number(amount, "$,.2f" if figure.endswith("usd") else ",.0f") for amount in amounts)
            )
    return table


def _number(amount: PlannedAmount | None, spec: str) -> str:
    if amount is None:
        return "not known"
    sign, spec = ("$", spec[1:]) if spec.startswith("$") else ("", spec)
    return f"{'≤ ' if amount.at_most else ''}{sign}{format(amount.value, spec)}"


def _format_hours(hours: float) -> str:
    return f"{hours:.1f} h" if hours >= 1 else f"{60 * hours:.0f} min"


def plan_json(planned: RunPlan) -> dict[str, Any]:
    """Convert a plan to JSON values: memory in bytes, `at_most` for bounds, null for unknown figures."""
    return {
        "recipe": planned.recipe,
        "agents": [asdict(player) for player in planned.agents],
        "coaches": [asdict(one) for one in planned.coaches],
        # The keys of the engines `cluster` and `local` are always there.
        "memory": {"placement": None, "local": None, **planned.memory.details, "unknown": planned.memory.unknown},
        "iterations": planned.iterations,
        "evaluations": planned.evaluations,
        "iteration": _figures(planned.iteration),
        "counterfactual": _figures(planned.counterfactual),
        "evaluation": _figures(planned.evaluation),
        "run": _figures(planned.run),
        "hours": _figure(planned.hours),
        "checkpoints": None if planned.checkpoints is None else asdict(planned.checkpoints),
        "notes": planned.notes,
        "problems": planned.problems,
    }


def _figures(work: Workload) -> dict[str, Any]:
    return {**{one.name: _figure(getattr(work, one.name)) for one in fields(work)}, "usd": _figure(work.usd)}


def _figure(amount: PlannedAmount | None) -> dict[str, Any] | None:
    return None if amount is None else {"value": amount.value, "at_most": amount.at_most}
