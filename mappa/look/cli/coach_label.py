"""`mappa coach label`: say who failed in a play, in which step and why, one play after the other."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import click
from rich.markup import escape

from mappa.cli.console import Console
from mappa.cli.formats import format_count
from mappa.cli.trajectory import new_messages
from mappa.look.cli.attribution_tables import describe_agreement
from mappa.look.labelling import (
    LabelSummary,
    build_label,
    check_labeller,
    find_play,
    login_name,
    plays_to_label,
    store_label,
    summarize_labels,
    whom_to_blame,
)
from mappa.look.shortlist import MAX_SUSPECTS, rank_suspects
from mappa.runs import RunReader
from mappa_core import ConfigError, Step, Trajectory
from mappa_core.codec import to_json
from mappa_core.records import BLAME_BESIDE_AGENTS, Label

QUIT = "q"
MAX_STEP_CHARACTERS = 2_000
"""Characters of an action, and of each answer of a tool, that are shown."""
ENOUGH = 10
"""Labels from which on a coach can be made of them."""


@click.command("label")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--labeller", metavar="NAME", help="Who labels; by default who is logged in.")
@click.option("--play", metavar="ID", help="Only this play, also to change its label; a part of its id is enough.")
@click.option("--who", metavar="NAME", help="With --play: who is to blame; nothing is asked.")
@click.option("--step", metavar="N", type=int, help="With --who: the decisive step; the first is 1.")
@click.option("--why", metavar="TEXT", default="", help="With --who: the reason.")
def label_command(
    run: Path, labeller: str | None, play: str | None, who: str | None, step: int | None, why: str
) -> None:
    """Say who failed in the plays of a run, in which step, and why.

    Shows one play after the other and asks. Whom to blame is an agent, or user, environment (a tool, or what it works
    on), task, or nobody. Each label is kept at once, beside the verdicts in run.db: end with q, and go on later. A
    label of the same person replaces the former one. `mappa view --label` asks in the browser.
    """
    if play is None and who is not None:
        raise ConfigError("--who labels one play: name it with --play ID")
    if who is None and (step is not None or why):
        raise ConfigError("--step and --why belong to a label: say --who")
    with RunReader(run) as reader:
        name = check_labeller(reader, login_name() if labeller is None else labeller)
        chosen = None if play is None else find_play(reader, play)
        waiting = [] if chosen is not None else plays_to_label(reader, name)
    console = Console()
    if chosen is not None and who is not None:
        store_label(run, build_label(chosen, name, who, step, why))
    elif chosen is not None:
        _label_one(console, run, chosen, name, "")
    else:
        _label_all(console, run, [row.id for row in waiting], name)
    with RunReader(run) as reader:
        show_summary(console, summarize_labels(reader, name), run)


def _label_all(console: Console, run: Path, plays: list[str], labeller: str) -> None:
    for number, identity in enumerate(plays, start=1):
        with RunReader(run) as reader:
            play = reader.trajectory(identity)
        if not _label_one(console, run, play, labeller, f"{number} of {len(plays)}  "):
            return


def _label_one(console: Console, run: Path, play: Trajectory, labeller: str, head: str) -> bool:
    """Show a play, ask, and keep the label. False: the labeller wants to end."""
    with RunReader(run) as reader:
        former = [label for label in reader.labels(play.id) if label.kind == "guilt" and label.labeller == labeller]
    show_play(console, play, head, former)
    try:
        label = _ask(console, play, labeller)
    except click.Abort:  # The end of the input, or Ctrl-C: what was labelled so far is kept.
        console.print()
        return False
    if label is None:
        return False
    if label.agent is not None:
        store_label(run, label)
    return True


def _ask(console: Console, play: Trajectory, labeller: str) -> Label | None:
    """Ask for the label; without an agent for a play that is skipped, None to end."""
    names = whom_to_blame(play)
    while True:
        said = click.prompt(f"who ({', '.join(names)}; Enter: skip, {QUIT}: end)", default="", show_default=False)
        who = _complete_name(said.strip(), names)
        if who == QUIT and QUIT not in names:
            return None
        if not who:
            return Label(kind="guilt", trajectory=play.id, labeller=labeller)
        try:
            # Built before the next question is asked, so that what cannot be is said at once.
            build_label(play, labeller, who, None, "")
            step = _ask_step(play, who)
            build_label(play, labeller, who, step, "")
            label = build_label(play, labeller, who, step, _ask_reason())
        except ConfigError as error:
            console.print(str(error), style="yellow", markup=False, soft_wrap=True)
            continue
        if step is not None and who not in {*BLAME_BESIDE_AGENTS, play.steps[step - 1].agent}:
            acted = play.steps[step - 1].agent
            console.print(f"kept; in step {step} acted {acted}", style="yellow", markup=False, soft_wrap=True)
        return label


def _complete_name(said: str, names: list[str]) -> str:
    """The name that a word stands for: itself, or the only one that begins with it."""
    if said in names or said == QUIT or not said:
        return said
    begun = [name for name in names if name.casefold().startswith(said.casefold())]
    return begun[0] if len(begun) == 1 else said


def _ask_step(play: Trajectory, who: str) -> int | None:
    """Ask for the decisive step; that of an agent who acted once is the default."""
    if who == "nobody":
        return None
    own = [place for place, step in enumerate(play.steps, start=1) if step.agent == who]
    default = str(own[0]) if len(own) == 1 else ""
    hint = f"Enter: {default}" if default else "Enter: none"
    said = click.prompt(f"step (1 to {len(play.steps)}; {hint})", default=default, show_default=False).strip()
    if not said:
        return None
    if not said.isascii() or not said.isdigit():
        raise ConfigError(f"{said!r} is not the number of a step")
    return int(said)


def _ask_reason() -> str:
    return str(click.prompt("why (Enter: no reason)", default="", show_default=False)).strip()


def show_play(console: Console, play: Trajectory, head: str, former: list[Label]) -> None:
    """Print a play as it is labelled: the task, the steps, quoted, the outcome, and where to look first."""
    console.rule(f"{head}{escape(play.id)}", align="left")
    _quote(console, "task", play.task.prompt)
    if play.task.reference is not None:
        _quote(console, "known answer", play.task.reference)
    seen: Counter[bytes] = Counter()
    for number, step in enumerate(play.steps, start=1):
        for message in new_messages(step, seen):
            # Agents' prompts are the same in every play, answers of tools stand below their calls.
            if message.role in ("user", "assistant") and message.content != play.task.prompt:
                _quote(console, f"   {message.name or message.role} says", message.content)
        for title, text in _describe_step(step):
            _quote(console, f"{number}  {step.agent}{title}", text)
    outcome = ", ".join(f"{name} {value:g}" for name, value in play.outcome.items())
    console.print(f"outcome: {outcome or 'not known'}", markup=False, highlight=False, soft_wrap=True)
    if play.error is not None:
        _quote(console, f"failed: {play.error.kind}", play.error.message)
    suspects = rank_suspects(play)[:MAX_SUSPECTS]
    if suspects:
        console.print("[bold]where to look first[/]", highlight=False)
    places = {step.id: place for place, step in enumerate(play.steps, start=1)}
    for verdict in suspects:
        agent = play.steps[places[verdict.step] - 1].agent
        line = f"step {places[verdict.step]}, {agent} ({verdict.coach}): {verdict.reasoning}"
        console.print(f"   {line}", markup=False, highlight=False, soft_wrap=True)
    for label in former:
        at = "" if label.step is None else f" in step {places[label.step]}"
        reason = f": {label.reason}" if label.reason else ""
        console.print(f"you said: {label.agent}{at}{reason}", style="cyan", markup=False, soft_wrap=True)


def _describe_step(step: Step) -> Iterator[tuple[str, str]]:
    if step.reply.content or not step.reply.tool_calls:
        yield "", step.reply.content or "(no text)"
    for call in step.reply.tool_calls:
        yield f" calls {call.name}", call.error or to_json(call.arguments).decode()
    for result in step.results:
        yield f" got from {result.tool}, {result.status}", (result.stdout + result.stderr) or "(nothing)"


def _quote(console: Console, title: str, text: str) -> None:
    console.print(f"[bold cyan]{escape(title)}[/]", highlight=False)
    shown = text[:MAX_STEP_CHARACTERS].rstrip("\n")
    for line in shown.split("\n"):
        console.print(f"| {line}", markup=False, highlight=False, soft_wrap=True)
    if len(text) > MAX_STEP_CHARACTERS:
        rest = len(text) - MAX_STEP_CHARACTERS
        console.print(f"… {rest:,} more characters: mappa runs trace shows all", style="dim", highlight=False)


def show_summary(console: Console, summary: LabelSummary, run: Path) -> None:
    """Print how far the labelling is, how far people agree, and what can be done with the labels."""

    def tell(line: str) -> None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    blamed = ", ".join(f"{name} {count:,}" for name, count in summary.blamed.items())
    plays = format_count(summary.plays, "play")
    tell(f"{summary.labeller} labelled {summary.labelled:,} of {plays}{f': {blamed}' if blamed else ''}")
    for line in () if summary.agreement is None else describe_agreement(summary.agreement):
        tell(line)
    folder = shlex.quote(str(run))
    if summary.labelled >= ENOUGH:
        tell(f"next     mappa coach fit evidence --run {folder} --out my-coach.json")
    elif summary.labelled < summary.plays:
        tell(f"next     mappa coach label {folder}")
