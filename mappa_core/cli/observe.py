"""`mappa observe`: watch a team through its coach, without training it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import click
import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mappa_core.cli.asking import announce, announce_sandboxes
from mappa_core.cli.options import Asked, load_registry, recipe_options

if TYPE_CHECKING:
    from mappa_core.store.summary import Interval
    from mappa_core.studies.observe import AgentDiagnosis, Diagnosis


@click.command("observe")
@recipe_options
@click.option("--examples", metavar="N", type=click.IntRange(0), default=3, show_default=True, help="Actions to show.")
@click.option("--quiet", is_flag=True, help="Print only the result.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def command(asked: Asked, examples: int, quiet: bool, as_json: bool) -> None:
    """Show which agent fails, how often and why; trains nothing.

    Policies may be behind an API (policies.default.kind=api): then it needs no GPU and no torch.
    """
    from mappa_core.cli.progress import counting
    from mappa_core.studies.observe import observe

    registry = load_registry()
    composed = asked.compose(registry, "eval.coach=true")
    errors = Console(stderr=True)
    with counting(errors, quiet=quiet or as_json) as progress:
        diagnosis = asyncio.run(
            observe(
                composed,
                registry,
                examples=examples,
                asking=lambda providers: announce(errors, providers),
                sandboxed=lambda sandboxes: announce_sandboxes(errors, sandboxes, quiet=quiet or as_json),
                starting=progress.starting,
                finished=progress.rollout_finished,
            )
        )
    if as_json:
        click.echo(as_document(diagnosis))
    else:
        show(Console(), diagnosis)


def show(console: Console, diagnosis: Diagnosis) -> None:
    """Who fails, how often, and the lowest actions of each agent with the coach's words."""
    from mappa_core.cli.progress import evaluation_line

    console.print(evaluation_line(diagnosis.evaluation), soft_wrap=True, highlight=False)
    console.print(
        f"{diagnosis.unsuccessful} of {diagnosis.rollouts} rollouts did not succeed"
        + (f"; in {diagnosis.blamed_nobody} of them nobody is to blame" if diagnosis.blamed_nobody else ""),
        highlight=False,
    )
    console.print(_table(diagnosis))
    for agent in diagnosis.agents:
        for example in agent.examples:
            console.print(f"[bold]{example.score:g}[/]  {escape(example.step)}  {escape(agent.agent)}", highlight=False)
            console.print(f"   {example.reasoning}", markup=False, highlight=False, soft_wrap=True)
    _reasons(console, "rollouts ended early", diagnosis.failures)
    _reasons(console, "verdicts have no score", diagnosis.coach.reasons)
    if diagnosis.coach.total.usage is not None:
        usd = diagnosis.coach.total.usd
        cost = "an unknown amount" if usd is None else f"${usd:.4f}"
        console.print(f"the coach cost {cost}", highlight=False)
    console.print(f"next     mappa runs trace {diagnosis.folder} ID", soft_wrap=True, highlight=False)


def _reasons(console: Console, what: str, counts: Mapping[str, int]) -> None:
    """How many, and the reasons that are met most often."""
    if not counts:
        return
    console.print(f"{sum(counts.values())} {what}:", style="yellow", highlight=False)
    for reason, count in sorted(counts.items(), key=lambda item: -item[1])[:5]:
        console.print(f"{count:6d} x {reason}", markup=False, highlight=False, soft_wrap=True)


def _table(diagnosis: Diagnosis) -> Table:
    from mappa_core.studies.observe import LOW

    table = Table(box=None, header_style="dim")
    columns: dict[str, Callable[[AgentDiagnosis], str]] = {
        "": lambda agent: agent.agent,
        "actions": lambda agent: str(agent.actions),
        "score": lambda agent: _score(agent.score),
        f"below {LOW:g}": lambda agent: _of(agent.low, agent.scored),
        "to blame": lambda agent: _of(agent.blamed, diagnosis.unsuccessful),
    }
    if any(agent.tool_calls for agent in diagnosis.agents):
        columns["tools failed"] = lambda agent: _of(agent.tool_failures, agent.tool_calls)
    if any(agent.missing_outputs or agent.missing_inputs for agent in diagnosis.agents):
        columns["files not left"] = lambda agent: str(agent.missing_outputs)
        columns["not given"] = lambda agent: str(agent.missing_inputs)
    for name in columns:
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for agent in diagnosis.agents:
        table.add_row(*(cell(agent) for cell in columns.values()))
    return table


def _score(score: Interval | None) -> str:
    if score is None:
        return "-"
    return f"{score.mean:.1f}" if score.high is None else f"{score.mean:.1f} ± {score.high - score.mean:.1f}"


def _of(count: int, whole: int) -> str:
    return f"{count} of {whole}" if whole else "-"


def as_document(diagnosis: Diagnosis) -> str:
    """A diagnosis as one JSON object; shares are 0-1, scores points 0-10."""
    evaluation = diagnosis.evaluation
    return msgspec.json.encode(
        {
            "folder": str(diagnosis.folder),
            "metric": evaluation.metric,
            "problems": len(evaluation.problems),
            "interval": evaluation.interval,
            "rollouts": diagnosis.rollouts,
            "unsuccessful": diagnosis.unsuccessful,
            "blamed_nobody": diagnosis.blamed_nobody,
            "ended_early": dict(diagnosis.failures),
            "agents": {agent.agent: agent for agent in diagnosis.agents},
            "coach": diagnosis.coach,
        }
    ).decode()
