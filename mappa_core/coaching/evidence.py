"""Evidence about an action: the Scene as a list of exhibits for a coach, without anything that differs between two runs
of the same action (ids, times), and without strata, so that the coach has no label to favour."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from mappa_core.coaching.contract_findings import inspection_lines, step_findings, step_name, team_findings
from mappa_core.coaching.data_fences import quote_name
from mappa_core.records import FileChange, Scene, Step, Task, ToolCall, ToolResult
from mappa_core.tools.parse_calls import unanswered_calls, unquoted_arguments
from mappa_core.tools.workspace import file_lineage

ExhibitKind = Literal[
    "fact", "earlier", "later", "shown", "answered", "task", "files", "thought", "called", "found", "truth", "wrote"
]  # fmt: skip
"""The kind of an exhibit, in the order in which `token_budget` cuts them; facts are never cut."""

EXCERPT_CHARACTERS = 600
"""Characters that are shown of another action's reply."""
ERROR_LINE_CHARACTERS = 300
"""Characters that are shown of the last line of another action's standard error."""
MIN_REFERENCE_CHARACTERS = 200
"""Characters of a text that is replaced by a reference when it repeats; a shorter one costs less than its reference."""
STATUS_TEXT = {"ok": "ended well", "error": "failed", "timeout": "was stopped at its limit of time"}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Exhibit:
    """A piece of evidence: a `title` in our words, and the `data` under it, unchanged text of an agent, program, tool
    or task. `name` is listed if it is cut or left out; adjacent exhibits of one kind and name are left out together."""

    kind: ExhibitKind
    title: str
    data: str | None = None
    name: str = ""


class _ShownTexts:
    """Longer texts that the evidence already contains, and the references that replace their repetitions."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def add(self, text: str, name: str) -> None:
        text = text.strip()
        if len(text) >= MIN_REFERENCE_CHARACTERS:
            self._names.setdefault(text, f"[as above: {name}]")

    def abbreviate(self, text: str) -> str:
        # The longest first: a shorter one may be part of it, and would leave the rest of it standing.
        for shown_text in sorted(self._names, key=len, reverse=True):
            text = text.replace(shown_text, self._names[shown_text])
        return text


def action_exhibits(scene: Scene) -> tuple[Exhibit, ...]:
    """Return the evidence about `scene.step`."""
    step, shown_texts = scene.step, _ShownTexts()
    steps, later = (*scene.earlier, step), scene.later or ()
    team = scene.team or {step.agent: scene.role}
    # In hindsight later steps are known, if only that there are none.
    is_over = scene.later is not None
    of_all = team_findings(team, scene.task.files, steps, later, is_over=is_over)
    return (
        *_task(scene.task, shown_texts),
        *_briefs("# Earlier actions, in short", scene.earlier, "earlier"),
        _fact(f"# The action to judge: {step_name(step)}"),
        *_full_exhibits(step, scene.earlier, shown_texts, "", of_all),
        *_truth(scene),
        *_briefs("# Later actions, in short", later, "later"),
        *_outcome(scene.outcome),
    )


def trajectory_exhibits(scenes: Sequence[Scene]) -> tuple[Exhibit, ...]:
    """Return the evidence about the steps of `scenes`, all of one trajectory, in order; shared parts occur once. The
    actions to judge are numbered from 1; actions in between that are not to be judged are abridged."""
    last, shown_texts = scenes[-1], _ShownTexts()
    steps, is_over = (*last.earlier, last.step, *(last.later or ())), last.later is not None
    numbers = {scene.step.id: number for number, scene in enumerate(scenes, 1)}
    exhibits = [*_task(last.task, shown_texts)]
    for place, step in enumerate(steps):
        number = numbers.get(step.id)
        if number is None:
            exhibits += _briefs("# An action not to judge, in short", (step,), "earlier")
            continue
        exhibits.append(_fact(f"# Action {number}, to judge: {step_name(step)}"))
        exhibits += _full_exhibits(step, steps[:place], shown_texts, f"action {number}: ")
        if scenes[number - 1].truth is not None:
            exhibits += _truth(scenes[number - 1], f" about action {number}", heading="##")
        # Added after its own exhibits: in them nothing is replaced by a reference to itself.
        for message_number, message in enumerate(step.messages, 1):
            shown_texts.add(message.content, f"message {message_number} of action {number}")
        shown_texts.add(step.reply.content, f"what action {number} wrote")
        for call_number, result in enumerate(step.results, 1):
            shown_texts.add(result.stdout, f"standard output of call {call_number} of action {number}")
    team = last.team or {last.step.agent: last.role}
    at_end = team_findings(team, last.task.files, steps, is_over=is_over)
    exhibits += _checks(at_end, "# Checked by machine, after the last action")
    # What the workflow reveals is about each action and stands there; the reference itself is the same for all.
    is_revealed = any(scene.truth is not None for scene in scenes)
    truth = () if is_revealed else _truth(last)
    return (*exhibits, *truth, *_outcome(last.outcome))


def _fact(title: str) -> Exhibit:
    return Exhibit(kind="fact", title=title)


def _task(task: Task, shown_texts: _ShownTexts) -> Iterator[Exhibit]:
    shown_texts.add(task.prompt, "the task")
    yield Exhibit(kind="task", title="# The task", data=task.prompt.rstrip(), name="the task")
    if task.files:
        names = "\n".join(quote_name(name, always=True) for name in task.files)
        yield Exhibit(kind="files", title="It came with files:", data=names, name="the files of the task")


def _full_exhibits(
    step: Step, earlier: Sequence[Step], shown_texts: _ShownTexts, prefix: str, of_all: Sequence[str] = ()
) -> Iterator[Exhibit]:
    yield from _prompt_exhibits(step, shown_texts, prefix)
    yield from record_exhibits(step, earlier, prefix, of_all)


def record_exhibits(
    step: Step, earlier: Sequence[Step], prefix: str = "", of_all: Sequence[str] = ()
) -> Iterator[Exhibit]:
    """Iterate over what was recorded of `step`, without what it was shown; `of_all` are findings about the team."""
    yield from _reply_exhibits(step, prefix)
    yield from _tool_exhibits(step, prefix)
    yield from _file_exhibits(step, earlier, prefix)
    yield from _checks((*step_findings(step), *of_all))
    lines = inspection_lines(step)
    if lines:
        name = f"{prefix}what was found in the files"
        yield Exhibit(kind="found", title="What was found in the files:", data="\n".join(lines), name=name)


def _prompt_exhibits(step: Step, shown_texts: _ShownTexts, prefix: str) -> Iterator[Exhibit]:
    yield _fact("## What it was shown")
    for place, message in enumerate(step.messages, 1):
        name = f"{prefix}message {place} of what it was shown"
        title = f"Message {place} of {len(step.messages)}, from {message.role}:"
        if message.content.strip() or not message.tool_calls:
            yield Exhibit(kind="shown", title=title, data=shown_texts.abbreviate(message.content.rstrip()), name=name)
        for call in message.tool_calls:
            yield Exhibit(kind="shown", title=f"A call in message {place}:", data=_arguments(call), name=name)


def _reply_exhibits(step: Step, prefix: str) -> Iterator[Exhibit]:
    heading, reply = "## What it wrote\n\n", step.reply
    if reply.reasoning:
        title, name = f"{heading}Its thinking, which nobody else is shown:", f"{prefix}its thinking"
        yield Exhibit(kind="thought", title=title, data=reply.reasoning.rstrip(), name=name)
        heading = ""
    if reply.content.strip():
        title, name = f"{heading}Its reply:", f"{prefix}its reply"
        yield Exhibit(kind="wrote", title=title, data=reply.content.rstrip(), name=name)
    else:
        yield _fact(heading + ("It wrote no text, and made calls." if reply.tool_calls else "Its reply is empty."))
    ending = _ending(step)
    if ending:
        yield _fact(ending)


def _ending(step: Step) -> str:
    if step.truncated:
        return "It was cut off at its token limit: this is where it stopped."
    if step.completion.finish == "abort":
        return "It was broken off from outside, before it had finished."
    return ""


def _tool_exhibits(step: Step, prefix: str) -> Iterator[Exhibit]:
    heading = "## What its tools answered\n\n"
    unanswered = unanswered_calls(step.reply, step.calls)
    # The first exhibit of the section has its heading.
    for place, call in enumerate(unanswered, 1):
        if step.own_tools:
            whose, where = "of its own program", "the answer stands in what the agent is shown next"
        else:
            whose, where = "without an answer", "none is recorded"
        which = f"call {place} of {len(unanswered)} {whose}"
        unread = ", and its arguments cannot be read" if call.error else ""
        yield _fact(f"{heading}{which.capitalize()}: {where}{unread}.")
        yield Exhibit(kind="called", title="What was called:", data=_arguments(call), name=f"{prefix}{which}")
        heading = ""
    if not step.calls and not unanswered:
        tools = ", ".join(quote_name(tool) for tool in (*step.tools, *(spec.name for spec in step.own_tools)))
        yield _fact(heading + (f"It made no calls; it could call {tools}." if tools else "It had no tools."))
    for place, (call, result) in enumerate(zip(step.calls, step.results, strict=True), 1):
        which = f"call {place} of {len(step.calls)}"
        tool = f", of {quote_name(call.name)}" if call.name in step.tools else ""
        yield _fact(f"{heading}{which.capitalize()}{tool}: {_call_outcome(call, result)}.")
        heading = ""
        # Of most calls the arguments stand in the reply, as its code block; twice they would cost tokens.
        if not tool or unquoted_arguments(call, step.reply.content):
            yield Exhibit(kind="called", title="What was called:", data=_arguments(call), name=f"{prefix}{which}")
        for stream, text in (("standard output", result.stdout), ("standard error", result.stderr)):
            if text.strip():
                name = f"{prefix}{stream} of {which}"
                yield Exhibit(kind="answered", title=f"Its {stream}:", data=text.rstrip(), name=name)


def _call_outcome(call: ToolCall, result: ToolResult) -> str:
    if call.error is not None:
        return "it was not run"
    code = "" if result.exit_code is None else f", exit code {result.exit_code}"
    silent = "" if result.stdout.strip() or result.stderr.strip() else ", and printed nothing"
    part = "; its tool kept only part of what it printed" if result.truncated else ""
    return f"it {STATUS_TEXT[result.status]}{code}{silent}{part}"


def _arguments(call: ToolCall) -> str:
    return json.dumps({"tool": call.name, "arguments": dict(call.arguments)}, ensure_ascii=False, default=str)


def _file_exhibits(step: Step, earlier: Sequence[Step], prefix: str) -> Iterator[Exhibit]:
    done = "\n".join(_file_changes(step))
    if not step.files:
        yield _fact(f"## Files\n\nNone were there when it began{'' if done else ', and it wrote none'}.")
    else:
        history, by_id = file_lineage(earlier), {other.id: other for other in earlier}
        lines = [
            f"{quote_name(path, always=True)}: {_file_history(path, history.get(path, ()), by_id)}"
            for path in step.files
        ]
        yield _fact("## Files")
        name = f"{prefix}the files there when it began"
        yield Exhibit(kind="files", title="There when it began:", data="\n".join(lines), name=name)
        if not done:
            yield _fact("It changed none, and wrote none.")
    if done:
        yield Exhibit(kind="files", title="What it did to files:", data=done, name=f"{prefix}what it did to files")


def _file_history(path: str, history: Sequence[tuple[str, FileChange]], steps: Mapping[str, Step]) -> str:
    changes = []
    for step_id, change in history:
        step = steps[step_id]
        # The first scan of a workspace reports all files as created, also those that came with the task.
        was_there = change.kind == "created" and path in step.files
        what = "there before the first call of a tool" if was_there else f"{change.kind} by {step_name(step)}"
        changes.append(f"{what}{_size(change)}")
    return ", ".join(changes) or "there from the start"


def _file_changes(step: Step) -> list[str]:
    """Describe the file changes by a step, in order, without the earlier files that a tool's first scan reports."""
    return [
        f"{change.kind} {quote_name(change.path, always=True)}{_size(change)}"
        for result in step.results
        for change in result.files
        if change.kind != "created" or change.path not in step.files
    ]


def _size(change: FileChange) -> str:
    return "" if change.size is None else f" ({change.size} bytes)"


def _briefs(heading: str, steps: Sequence[Step], kind: ExhibitKind) -> Iterator[Exhibit]:
    if steps:
        yield _fact(heading)
    for step in steps:
        yield from _brief(step, kind)


def _brief(step: Step, kind: ExhibitKind) -> Iterator[Exhibit]:
    name, text = step_name(step), step.reply.content.strip()
    calls = zip(step.calls, step.results, strict=True)
    outcomes = [f"Call {place}: {_call_outcome(call, result)}." for place, (call, result) in enumerate(calls, 1)]
    facts = [fact for fact in (*outcomes, _ending(step), *step_findings(step)) if fact]
    yield Exhibit(kind=kind, title="\n".join((f"## {name}", *facts)), name=name)
    if text:
        is_cut = len(text) > EXCERPT_CHARACTERS
        cut = f" (the first {EXCERPT_CHARACTERS} of {len(text)} characters)" if is_cut else ""
        yield Exhibit(kind=kind, title=f"Its reply{cut}:", data=text[:EXCERPT_CHARACTERS], name=name)
    for place, result in enumerate(step.results, 1):
        error = result.stderr.rstrip()
        if result.status != "ok" and error:
            # The last line of a traceback says what was raised. Cut first: it may be as long as all of the output.
            last_line = error[-ERROR_LINE_CHARACTERS:].splitlines()[-1]
            yield Exhibit(kind=kind, title=f"The end of standard error of call {place}:", data=last_line, name=name)
    changes = _file_changes(step)
    if changes:
        yield Exhibit(kind=kind, title="What it did to files:", data="\n".join(changes), name=name)


def _checks(findings: Sequence[str], heading: str = "## Checked by machine") -> Iterator[Exhibit]:
    if findings:
        yield _fact("\n".join((heading, *(f"- {finding}" for finding in findings))))


def _truth(scene: Scene, about: str = "", heading: str = "#") -> Iterator[Exhibit]:
    truth = scene.task.reference if scene.truth is None else scene.truth
    if truth is not None:
        yield Exhibit(kind="truth", title=f"{heading} The truth{about}", data=truth, name=f"the truth{about}")


def _outcome(outcome: Mapping[str, float] | None) -> Iterator[Exhibit]:
    if outcome is not None:
        lines = [f"- {quote_name(name)}: {value:g}" for name, value in outcome.items()]
        yield _fact("\n".join(("# The outcome", *lines)))
