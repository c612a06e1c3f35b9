"""Output of `mappa observe`: which agents fail, how often and why."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace

import msgspec
from rich.table import Table

from mappa.cli.console import Console, Name, escape
from mappa.cli.formats import format_count, format_percent
from mappa.cli.result_tables import evaluation_json, show_evaluation
from mappa.cli.tables import columns_table
from mappa.cli.trajectory import label_headline
from mappa.look.cli.attribution_tables import describe_agreement
from mappa.look.counted_verdicts import LOW_SCORE
from mappa.look.handoffs import Handoff
from mappa.look.observe import AgentDiagnosis, Diagnosis
from mappa_core.records import Interval, Label
from mappa_core.redaction import clean_line, clean_name

MAX_FILE_REASONS = 3
"""Maximum reasons listed for a broken file."""


def show_diagnosis(console: Console, diagnosis: Diagnosis) -> None:
    """Print which agents fail and how often, the hand-offs, and each agent's lowest actions with the coach's
    reasoning."""
    _show_outcome(console, diagnosis)
    judged = diagnosis.coach.total.verdicts > 0
    if not judged:
        console.print("no coach was asked about them", style="yellow")
    console.print(_table(diagnosis))
    if diagnosis.handoffs:
        _show_handoffs(console, diagnosis)
    show_examples(console, diagnosis)
    folder = shlex.quote(str(diagnosis.folder))
    console.print(f"next     mappa runs trace {folder} ID", soft_wrap=True, highlight=False, markup=False)
    if diagnosis.provable and not diagnosis.imported:
        proof = f"proof    mappa prove {folder} --split {diagnosis.split}"
        console.print(proof, soft_wrap=True, highlight=False, markup=False)


def show_examples(console: Console, diagnosis: Diagnosis) -> None:
    """Print each agent's lowest actions with the coach's reasoning, where to look first, and what is missing."""
    for agent in diagnosis.agents:
        for example in agent.examples:
            times = f"{example.count} times, first " if example.count > 1 else ""
            console.print(
                f"[bold]{example.score:g}[/]  {escape(agent.agent)}  {times}{escape(example.step)}",
                highlight=False, soft_wrap=True,
            )  # fmt: skip
            console.print(f"   {example.reasoning}", markup=False, highlight=False, soft_wrap=True)
            for label in example.labels:
                console.print(f"   {_describe_label(label, example.step)}", markup=False, style="cyan", soft_wrap=True)
    _show_suspects(console, diagnosis)
    _show_reasons(console, "rollouts ended early", diagnosis.failures)
    _show_reasons(console, "verdicts have no score", diagnosis.coach.reasons)
    if diagnosis.coach.total.usage is not None:
        usd = diagnosis.coach.total.usd
        cost = "an unknown amount" if usd is None else f"${usd:.4f}"
        console.print(f"the coach cost {cost}", highlight=False)


def _show_outcome(console: Console, diagnosis: Diagnosis) -> None:
    """Print what the rollouts came to, as far as it is known, and in how many nobody is to blame."""
    rollouts = format_count(diagnosis.rollouts, "rollout")
    if diagnosis.imported and not diagnosis.has_outcome:
        line = f"{rollouts}, of which no outcome is known: blame is counted over all of them. With `mappa import LOG"
        line += " --outcome KEY --name RUN` (a reward, a grade, a final label) those that succeeded are not looked at"
    else:
        after = f"training rollouts after {format_count(diagnosis.evaluation.iteration, 'iteration')}"
        played = "imported" if diagnosis.imported else after if diagnosis.split == "train" else None
        show_evaluation(console, diagnosis.evaluation, played)
        line = f"{diagnosis.unsuccessful} of {rollouts} did not succeed"
    console.print(line, highlight=False, soft_wrap=True)
    if diagnosis.coach.total.verdicts and diagnosis.looked_at:
        _show_blame_beside_agents(console, diagnosis)
    if diagnosis.labelled:
        labelled = f"people say who is to blame in {format_count(diagnosis.labelled, 'rollout')}"
        met = f"; verdicts blame that agent in {diagnosis.labels_met} of them"
        console.print(labelled + (met if diagnosis.coach.total.verdicts else ""), highlight=False, soft_wrap=True)
    if diagnosis.agreement is not None:
        for line in describe_agreement(diagnosis.agreement):
            console.print(line, markup=False, highlight=False, soft_wrap=True)


def _show_blame_beside_agents(console: Console, diagnosis: Diagnosis) -> None:
    """Print, before any agent is named, in how many rollouts it is unknown who failed, or no agent is to blame."""
    if diagnosis.cannot_tell:
        told = (
            f"[bold]cannot tell in {diagnosis.cannot_tell} of {diagnosis.looked_at}[/]: no verdict blames anybody there"
        )
        console.print(told, highlight=False, soft_wrap=True)
    for name, count in diagnosis.blamed_others.items():
        console.print(f"the {name} is to blame in {count} of {diagnosis.looked_at}", highlight=False, soft_wrap=True)
    if diagnosis.categories:
        counts = sorted(diagnosis.categories.items(), key=lambda item: (-item[1], item[0]))
        kinds = ", ".join(f"{clean_name(name)} {count}" for name, count in counts)
        console.print(f"kinds of failure: {kinds}", markup=False, highlight=False, soft_wrap=True)


def _show_suspects(console: Console, diagnosis: Diagnosis) -> None:
    """Print where to look first in the first rollouts, with what speaks for each action."""
    if not diagnosis.suspects:
        return
    console.print("\n[bold]where to look first[/]  [dim]the most suspicious actions; nobody is accused by it[/]")
    for suspects in diagnosis.suspects:
        console.print(clean_name(suspects.trajectory), markup=False, highlight=False, soft_wrap=True)
        for place, verdict in enumerate(suspects.verdicts, 1):
            said = f"{place}. {verdict.step.rpartition('/')[2]}  {verdict.reasoning}"
            console.print(f"   {clean_line(said)}", markup=False, highlight=False, soft_wrap=True)


def _describe_label(label: Label, step: str) -> str:
    """The headline of a label of `step` or, where it is of another step, the name of that."""
    elsewhere = "" if label.step in (None, step) else f" ({label.step})"
    reason = f": {label.reason}" if label.reason else ""
    return f"{label_headline(replace(label, step=None) if elsewhere else label)}{elsewhere}{reason}"


def _show_reasons(console: Console, what: str, counts: Mapping[str, int]) -> None:
    """Print the count, and the most frequent reasons."""
    if not counts:
        return
    console.print(f"{sum(counts.values())} {what}:", style="yellow", highlight=False)
    for reason, count in sorted(counts.items(), key=lambda item: -item[1])[:5]:
        console.print(f"{count:6d} x {clean_line(reason)}", markup=False, highlight=False, soft_wrap=True)


def _table(diagnosis: Diagnosis) -> Table:
    columns: dict[str, Callable[[AgentDiagnosis], str]] = {
        "actions": lambda agent: str(agent.actions),
    }
    if diagnosis.coach.total.verdicts:
        columns["score"] = lambda agent: _score(agent.score)
        columns[f"below {LOW_SCORE:g}"] = lambda agent: _format_count_of(agent.low, agent.scored)
        columns["to blame"] = lambda agent: _format_count_of(agent.blamed, diagnosis.looked_at)
    if diagnosis.labelled:
        columns["labelled"] = lambda agent: _format_count_of(agent.labelled_guilty, diagnosis.labelled)
    if any(agent.tool_calls for agent in diagnosis.agents):
        columns["tools failed"] = lambda agent: _format_count_of(agent.tool_failures, agent.tool_calls)
    table = columns_table("", *columns)
    for agent in diagnosis.agents:
        table.add_row(Name(agent.agent), *(cell(agent) for cell in columns.values()))
    return table


def _score(score: Interval | None) -> str:
    if score is None:
        return "-"
    return f"{score.mean:.1f}" if score.high is None else f"{score.mean:.1f} ± {score.high - score.mean:.1f}"


def _format_count_of(count: int, whole: int) -> str:
    return f"{count} of {whole}" if whole else "-"


def _show_handoffs(console: Console, diagnosis: Diagnosis) -> None:
    """Print a row per file of the contract: its state and its effect on the metric. Then its makers and users, and why
    it could not be used."""
    metric = diagnosis.evaluation.metric
    table = columns_table("hand-off", "due", "made", "missing", "broken", f"{metric} if fine", "if not", "first")
    for handoff in diagnosis.handoffs:
        table.add_row(
            Name(handoff.path),
            *map(str, (handoff.rollouts, handoff.made, handoff.missing, handoff.broken)),
            f"{format_percent(handoff.metric_fine)} of {handoff.fine}",
            f"{format_percent(handoff.metric_flawed)} of {handoff.missing + handoff.broken}",
            str(handoff.failed_first),
        )
    console.print(table)
    for handoff in diagnosis.handoffs:
        console.print(f" {clean_line(_describe_handoff(handoff))}", markup=False, highlight=False, soft_wrap=True)
    console.print(" first: rollouts that did not succeed, in which this file was flawed before any other", style="dim")


def _describe_handoff(handoff: Handoff) -> str:
    """Describe who makes a file and who needs it, who made it instead, and why it could not be used."""
    way = f"{', '.join(handoff.makers) or 'nobody'} -> {', '.join(handoff.needed_by) or 'the outcome'}"
    others = {agent: count for agent, count in handoff.made_by.items() if agent not in handoff.makers}
    details = [f"made by {agent} in {count}" for agent, count in others.items()]
    often = sorted(handoff.reasons.items(), key=lambda item: (-item[1], item[0]))[:MAX_FILE_REASONS]
    if often:
        details.append(f"broken: {', '.join(f'{reason} {count}' for reason, count in often)}")
    return "; ".join((f"{handoff.path}: {way}", *details))


def diagnosis_json(diagnosis: Diagnosis) -> str:
    """Encode a diagnosis as one JSON object; shares are 0-1, scores points 0-10."""
    evaluation = diagnosis.evaluation
    return msgspec.json.encode(
        {
            "folder": str(diagnosis.folder),
            "split": diagnosis.split,
            "iteration": evaluation.iteration,
            "part": evaluation.part,
            "metric": evaluation.metric,
            "rollouts": diagnosis.rollouts,
            "unsuccessful": diagnosis.unsuccessful,
            "looked_at": diagnosis.looked_at,
            "has_outcome": diagnosis.has_outcome,
            "cannot_tell": diagnosis.cannot_tell,
            "blamed_others": dict(diagnosis.blamed_others),
            "categories": dict(diagnosis.categories),
            "suspects": {
                one.trajectory: [
                    {"step": verdict.step, "suspicion": verdict.suspicion, "reasoning": verdict.reasoning}
                    for verdict in one.verdicts
                ]
                for one in diagnosis.suspects
            },
            "ended_early": dict(diagnosis.failures),
            **evaluation_json(evaluation),
            "agents": {agent.agent: agent for agent in diagnosis.agents},
            "labelled": diagnosis.labelled,
            "labels_met": diagnosis.labels_met,
            "agreement": diagnosis.agreement,
            "handoffs": diagnosis.handoffs,
            "coach": diagnosis.coach,
        }
    ).decode()
