"""`mappa runs`: list runs, show a run, and print a trajectory with all verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path

import click

from mappa.cli.console import Console, Name, echo, escape
from mappa.cli.formats import format_percent, format_share
from mappa.cli.tables import agents_table, columns_table
from mappa.runs.reader import RunReader
from mappa.store.folder import is_in_use, list_run_folders
from mappa.store.summary import Summary, read_summary
from mappa_core.codec import to_json
from mappa_core.errors import RunError
from mappa_core.records import NOBODY, Label, Message, Step, ToolResult, Trajectory, Verdict
from mappa_core.tools.parse_calls import unanswered_calls, unquoted_arguments
from mappa_core.tools.workspace import printable_path

QUALITIES = {1.0: "right", 0.0: "neither right nor wrong", -1.0: "wrong"}
WIDE = 110  # Columns from which on a list of runs shows every interval; below, that of the gain alone.
SHOWN_PLAYS = 5  # Trajectories of a task that an error names.


@click.group("runs")
def command() -> None:
    """List runs, show one, print what happened in a trajectory."""


@command.command("list")
@click.option(
    "--root",
    metavar="DIR",
    type=click.Path(path_type=Path),
    default=Path("runs"),
    show_default=True,
    help="Folder of runs.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per run and nothing else.")
def list_runs(root: Path, as_json: bool) -> None:
    """List the runs in a folder, the oldest first."""
    console = Console()
    wide = console.width >= WIDE
    table = columns_table("run", "status", "iterations" if wide else "iter.", "before", "after", "gain", text=2)
    for folder in list_run_folders(root):
        status, summary = _read_status(folder)
        if as_json:
            echo(to_json({"run": str(folder), "status": status, "summary": summary}).decode())
            continue
        found = None if summary is None else summary.eval
        before, after, gain = (None, None, None) if found is None else (found.before, found.after, found.gain)
        shares = [
            format_share(share) if wide else format_percent(None if share is None else share.mean)
            for share in (before, after)
        ]
        iterations = "-" if summary is None else str(summary.iterations)
        table.add_row(Name(folder.name), Name(status), iterations, *shares, format_share(gain, sign=True))
    if not as_json:
        console.print(table if table.row_count else f"no runs in {root}", highlight=False, markup=False)


def _read_status(folder: Path) -> tuple[str, Summary | None]:
    """What became of a run, and its summary; None if it has none, as one that was killed early."""
    try:
        summary = read_summary(folder)
    except RunError as error:
        problem = "unreadable" if isinstance(error.__cause__, PermissionError) else "no summary"
        return ("running" if problem == "no summary" and is_in_use(folder) else problem), None
    return ("killed" if summary.status == "running" and not is_in_use(folder) else summary.status), summary


@command.command("show")
@click.argument("folder", metavar="RUN", type=click.Path(path_type=Path))
@click.option(
    "--split", type=click.Choice(["train", "eval", "counterfactual", "candidate"]), help="By default train and eval."
)
@click.option("--iteration", type=click.IntRange(0), help="Only trajectories of this iteration.")
@click.option("--limit", type=click.IntRange(0), default=20, show_default=True, help="Trajectories to show.")
@click.option("--offset", type=click.IntRange(0), default=0, show_default=True, help="Trajectories to skip first.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def show_run(folder: Path, split: str | None, iteration: int | None, limit: int, offset: int, as_json: bool) -> None:
    """Show a run: its agents in the last iteration, and its trajectories, the newest first."""
    console = Console()
    with RunReader(folder) as reader:
        counts, latest = reader.counts(split, iteration), reader.latest_iteration()
        rows = list(reader.trajectories.where(split=split, iteration=iteration))[::-1][offset : offset + limit]
    if as_json:
        echo(to_json({"counts": counts, "trajectories": rows}).decode())
        return
    if latest is not None:
        console.print(agents_table(latest.agents))
    console.print(", ".join(f"{count} {status}" for status, count in counts.items()) or "no trajectories")
    table = columns_table("trajectory", "stratum", "status", "outcome", "actions", text=4)
    table.columns[0].no_wrap = True  # People copy it.
    for row in rows:
        outcome = row.error.kind if row.error else ", ".join(f"{key} {value:g}" for key, value in row.outcome.items())
        table.add_row(Name(row.id), Name(row.stratum), Name(row.status), Name(outcome), str(row.steps))
    console.print(table)
    if len(rows) < (total := sum(counts.values())):
        console.print(_describe_part(len(rows), offset, total), highlight=False, soft_wrap=True)
    console.print(
        f"next     mappa observe {folder}, mappa runs trace {folder} ID", soft_wrap=True, highlight=False, markup=False
    )


def _describe_part(shown: int, offset: int, total: int) -> str:
    """Describe which trajectories were shown, and how to see more."""
    if not shown:
        return f"none of {total:,} shown: --offset {offset} is beyond them, or --limit is 0"
    end = offset + shown
    more = f"; --offset {end} shows older ones, --limit N more at once" if end < total else ""
    return f"{offset + 1:,} to {end:,} of {total:,}, the newest first{more}"


@command.command("trace")
@click.argument("folder", metavar="RUN", type=click.Path(path_type=Path))
@click.argument("trajectory")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def trace_trajectory(folder: Path, trajectory: str, as_json: bool) -> None:
    """Print one trajectory: what each agent saw and wrote, what its tools answered, verdicts, and labels of people."""
    with RunReader(folder) as reader:
        try:
            shown, labels = reader.trajectory(trajectory), reader.labels(trajectory)
        except RunError as error:
            if plays := [row.id for row in reader.trajectories if row.task == trajectory]:
                raise RunError(_describe_plays(trajectory, plays)) from error
            raise
    if as_json:
        echo(to_json({**{one.name: getattr(shown, one.name) for one in fields(shown)}, "labels": labels}).decode())
    else:
        show_trajectory(Console(), shown, labels)


def _describe_plays(task: str, plays: Sequence[str]) -> str:
    """Say that a task is no trajectory, and which are of it, the newest first."""
    named = ", ".join(plays[: -SHOWN_PLAYS - 1 : -1])
    more = f" and {len(plays) - SHOWN_PLAYS} more" if len(plays) > SHOWN_PLAYS else ""
    return f"{task} is a task, not a trajectory: name one in which it was played: {named}{more}"


def show_trajectory(console: Console, trajectory: Trajectory, labels: Sequence[Label] = ()) -> None:
    """Print every action with its verdicts and labels. Text of agents is printed as text, never as markup."""
    console.print(f"[bold]{escape(trajectory.id)}[/]  {escape(trajectory.task.stratum)}", highlight=False)
    _block(console, "task", trajectory.task.prompt)
    _block(console, "truth", trajectory.task.reference or "-")
    seen: Counter[bytes] = Counter()
    for step in trajectory.steps:
        verdicts = [one for one in trajectory.verdicts if one.step == step.id]
        _show_step(console, step, new_messages(step, seen), verdicts)
        _show_labels(console, [one for one in labels if one.step == step.id])
    outcome = ", ".join(f"{name} {value:g}" for name, value in trajectory.outcome.items()) or "none"
    console.print(f"[bold]outcome[/] {escape(outcome)}", highlight=False)
    _show_labels(console, [one for one in labels if one.step is None])
    if trajectory.error:
        _block(console, f"failed: {trajectory.error.kind}", trajectory.error.message)
        for quoted, characters in trajectory.error.quoted.items():
            console.print(f"[bold]quoted[/] {escape(quoted)}: {characters} characters", highlight=False)


def new_messages(step: Step, seen: Counter[bytes]) -> list[Message]:
    """The messages of `step` that no action before saw or wrote, where one that is said again is new; `seen` counts how
    often each was said, and is brought up to `step`."""
    new, said = [], Counter[bytes]()
    for message in step.messages:
        said[key := _unnamed(message)] += 1
        if said[key] > seen[key]:
            new.append(message)
    said[_unnamed(step.reply)] += 1
    seen |= said
    return new


def _unnamed(message: Message) -> bytes:
    """A message without its name, which a reply does not have."""
    return to_json(replace(message, name=None))


def _show_step(console: Console, step: Step, new: list[Message], verdicts: list[Verdict]) -> None:
    console.rule(f"{escape(step.agent)}, turn {step.turn + 1}", align="left")
    for message in new:
        _block(console, f"saw, from {message.name or message.role}", message.content)
    if step.reply.reasoning:
        _block(console, "thought", step.reply.reasoning)
    _block(console, "wrote" + " (cut off at its token limit)" * step.truncated, step.completion.text or "(no text)")
    for call in unanswered_calls(step.reply, step.calls):
        _block(console, f"called {call.name}, no answer is recorded", call.error or to_json(call.arguments).decode())
    for call in step.calls:
        if (unquoted := unquoted_arguments(call, step.completion.text)) or call.error:
            _block(console, f"called {call.name}", call.error or to_json(unquoted).decode())
    for result in step.results:
        _block(console, _describe_result(result), (result.stdout + result.stderr) or "(printed nothing)")
        for change in result.files:
            size = "" if change.size is None else f", {change.size} bytes"
            console.print(f"{change.kind} {escape(printable_path(change.path))}{size}", highlight=False)
    for breach in step.breaches:
        details = ": ".join(escape(text) for text in (breach.reason, breach.detail) if text)
        console.print(f"[yellow]{breach.kind}: {escape(breach.path)}[/] {details}", highlight=False)
    for place, verdict in enumerate(verdicts):
        _block(console, verdict_headline(verdict, is_first=place == 0), verdict.error or verdict.reasoning)
        if verdict.correction:
            _block(console, "better", verdict.correction)


def _show_labels(console: Console, labels: Sequence[Label]) -> None:
    for label in labels:
        _block(console, label_headline(label), label.reason)


def _describe_result(result: ToolResult) -> str:
    where = "" if result.sandbox is None else f", in {result.sandbox}"
    stopped = "" if result.limit is None else f", stopped at its limit of {result.limit}"
    watched = f" (polled: {', '.join(result.watched)})" if result.limit and result.watched else ""
    again = "" if result.attempts == 1 else f", in attempt {result.attempts}"
    return f"{result.tool}: {result.status}{stopped}{watched}{where}{again}"


def verdict_headline(verdict: Verdict, *, is_first: bool = False) -> str:
    """Describe a verdict: coach, score, and how it was obtained. The first one on an action was not asked for again."""
    result = verdict.status if verdict.score is None else f"{verdict.score:g} of 10"
    notes = [
        "in hindsight"
        if verdict.phase == "after"
        else "asked again"
        if verdict.phase == "again" and not is_first
        else "",
        "" if verdict.raw_score is None else f"{verdict.raw_score:g} before correction for bias",
        "from the cassette" if verdict.replayed else "",
        "" if verdict.blame in (None, NOBODY) else f"to blame: {verdict.blame}",
    ]
    return ", ".join((f"{verdict.coach}: {result}", *(note for note in notes if note)))


def label_headline(label: Label) -> str:
    """Describe a label: the labeller, and the label of the agent or action."""
    if label.kind == "guilt":
        kind = "" if label.category is None else f" ({label.category})"
        at = "" if label.step is None else ", in this step"
        return f"label of {label.labeller}: {label.agent} is to blame{at}{kind}"
    value = "no value" if label.value is None else QUALITIES.get(label.value, f"{label.value:g}")
    return f"label of {label.labeller}: {'the whole is ' if label.step is None else ''}{value}"


def _block(console: Console, title: str, text: str) -> None:
    console.print(f"[bold cyan]{escape(title)}[/]", highlight=False)
    if text:
        console.print(text.rstrip("\n"), markup=False, highlight=False, soft_wrap=True)
