"""A trajectory as text: what each agent saw and wrote, what its tools answered, verdicts and labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from mappa.cli.console import Console, escape
from mappa_core.codec import to_json
from mappa_core.records import NOBODY, Label, Message, Step, ToolResult, Trajectory, Verdict
from mappa_core.tools.parse_calls import unanswered_calls, unquoted_arguments

QUALITIES = {1.0: "right", 0.0: "neither right nor wrong", -1.0: "wrong"}


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
            console.print(f"{change.kind} {escape(change.path)}{size}", highlight=False)
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
