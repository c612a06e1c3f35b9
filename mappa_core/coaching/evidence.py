"""What a coach is shown of an action: the Scene as a list of exhibits.

An exhibit has a title in our words and, where there is something to show, data: whatever an agent, a program, a tool or
the task wrote, as it was written. How much of it fits, and the fences around it, are for `budget` and `fences`. Nothing
that differs between two runs of the same action is shown: no ids, no times. Neither are strata, so that the coach has
no label to favour.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from mappa_core.coaching.fences import plain, quoted
from mappa_core.coaching.findings import looked_into, named, of_step, of_team
from mappa_core.records import FileChange, Role, Scene, Step, Task, ToolCall, ToolResult
from mappa_core.tools.workspace import lineage

Kind = Literal[
    "fact", "earlier", "later", "shown", "answered", "task", "files", "thought", "called", "found", "truth", "wrote"
]  # fmt: skip
"""What an exhibit is of, which decides when it is cut."""

BEGINNING = 600
"""Characters of what another action wrote that are shown in short."""
LAST_LINE = 300
WORTH_NAMING = 200
"""Characters of a text from which on it is not shown a second time."""
OUTCOMES = {"ok": "ended well", "error": "failed", "timeout": "was stopped at its limit of time"}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Exhibit:
    """A piece of evidence. `data` is None where the title says all. `name` says in our words what was cut or left out;
    exhibits of one kind and name, one after the other, are left out together."""

    kind: Kind
    title: str
    data: str | None = None
    name: str = ""


class _Told:
    """Longer texts that the evidence holds already, by the name that stands for them where they come again."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def add(self, text: str, name: str) -> None:
        if len(text := text.strip()) >= WORTH_NAMING:
            self._names.setdefault(text, f"[as above: {name}]")

    def without(self, text: str) -> str:
        """`text` with the name of every text that it repeats, the longest ones first."""
        for told in sorted(self._names, key=len, reverse=True):
            text = text.replace(told, self._names[told])
        return text


def of_action(scene: Scene) -> tuple[Exhibit, ...]:
    """The evidence about `scene.step`."""
    step, told = scene.step, _Told()
    steps, later = (*scene.earlier, step), scene.later or ()
    of_all = of_team(_team(scene), scene.task.files, steps, later, over=scene.later is not None)
    return (
        *_task(scene.task, told),
        *_in_short("# Earlier actions, in short", scene.earlier, "earlier"),
        _fact(f"# The action to judge: {named(step)}"),
        *_in_full(step, scene.earlier, told, ""),
        *_checked((*of_step(step), *of_all)),
        *_found(step, ""),
        *_truth(scene),
        *_in_short("# Later actions, in short", later, "later"),
        *_outcome(scene.outcome),
    )


def of_actions(scenes: Sequence[Scene]) -> tuple[Exhibit, ...]:
    """The evidence about the steps of `scenes`, all of one trajectory, in order: what they share stands there once. The
    actions to judge are numbered from 1; those in between that are not to be judged are there in short."""
    last, told = scenes[-1], _Told()
    steps, over = (*last.earlier, last.step, *(last.later or ())), last.later is not None
    numbers = {scene.step.id: number for number, scene in enumerate(scenes, 1)}
    exhibits = [*_task(last.task, told)]
    for place, step in enumerate(steps):
        if step.id in numbers:
            number = numbers[step.id]
            exhibits.append(_fact(f"# Action {number}, to judge: {named(step)}"))
            exhibits += _in_full(step, steps[:place], told, f"action {number}: ")
            exhibits += _checked(of_step(step))
            exhibits += _found(step, f"action {number}: ")
            exhibits += _told_of(scenes[number - 1], number)
            _remember(step, told, number)
        else:
            exhibits += _in_short("# An action not to judge, in short", (step,), "earlier")
    at_end = of_team(_team(last), last.task.files, steps, over=over)
    exhibits += _checked(at_end, "# Checked by machine, after the last action")
    shown = () if any(scene.truth is not None for scene in scenes) else _truth(last)
    return (*exhibits, *shown, *_outcome(last.outcome))


def _team(scene: Scene) -> Mapping[str, Role]:
    return scene.team or {scene.step.agent: scene.role}


def _fact(title: str) -> Exhibit:
    return Exhibit(kind="fact", title=title)


def _task(task: Task, told: _Told) -> Iterator[Exhibit]:
    told.add(task.prompt, "the task")
    yield Exhibit(kind="task", title="# The task", data=task.prompt.rstrip(), name="the task")
    if task.files:
        names = "\n".join(quoted(name) for name in task.files)
        yield Exhibit(kind="files", title="It came with files:", data=names, name="the files of the task")


def _in_full(step: Step, earlier: Sequence[Step], told: _Told, where: str) -> Iterator[Exhibit]:
    yield from _shown(step, told, where)
    yield from _wrote(step, where)
    yield from _answered(step, where)
    yield from _files(step, earlier, where)


def _remember(step: Step, told: _Told, number: int) -> None:
    """What of an action need not be shown again with the actions after it."""
    for place, message in enumerate(step.messages, 1):
        told.add(message.content, f"message {place} of action {number}")
    told.add(step.reply.content, f"what action {number} wrote")
    for place, result in enumerate(step.results, 1):
        told.add(result.stdout, f"standard output of call {place} of action {number}")


def _shown(step: Step, told: _Told, where: str) -> Iterator[Exhibit]:
    yield _fact("## What it was shown")
    for place, message in enumerate(step.messages, 1):
        name = f"{where}message {place} of what it was shown"
        title = f"Message {place} of {len(step.messages)}, from {message.role}:"
        if message.content.strip() or not message.tool_calls:
            yield Exhibit(kind="shown", title=title, data=told.without(message.content.rstrip()), name=name)
        for call in message.tool_calls:
            yield Exhibit(kind="shown", title=f"A call in message {place}:", data=_arguments(call), name=name)


def _wrote(step: Step, where: str) -> Iterator[Exhibit]:
    heading, reply = "## What it wrote\n\n", step.reply
    if reply.reasoning:
        title, name = f"{heading}Its thinking, which nobody else is shown:", f"{where}its thinking"
        yield Exhibit(kind="thought", title=title, data=reply.reasoning.rstrip(), name=name)
        heading = ""
    if reply.content.strip():
        title, name = f"{heading}Its reply:", f"{where}its reply"
        yield Exhibit(kind="wrote", title=title, data=reply.content.rstrip(), name=name)
    else:
        yield _fact(f"{heading}Its reply is empty.")
    if ending := _ending(step):
        yield _fact(ending)


def _ending(step: Step) -> str:
    if step.truncated:
        return "It was cut off at its token limit: this is where it stopped."
    if step.completion.finish == "abort":
        return "It was broken off from outside, before it had finished."
    return ""


def _answered(step: Step, where: str) -> Iterator[Exhibit]:
    heading = "## What its tools answered\n\n"
    own = [call for call in step.reply.tool_calls if call not in step.calls] if step.own_tools else []
    for place, call in enumerate(own, 1):
        which = f"call {place} of {len(own)} of its own program"
        yield _fact(f"{heading}{which.capitalize()}: the answer stands in what the agent is shown next.")
        yield Exhibit(kind="called", title="What was called:", data=_arguments(call), name=f"{where}{which}")
        heading = ""
    if not step.calls and not own:
        tools = ", ".join(plain(tool) for tool in (*step.tools, *(spec.name for spec in step.own_tools)))
        yield _fact(heading + (f"It made no calls; it could call {tools}." if tools else "It had no tools."))
    for place, (call, result) in enumerate(zip(step.calls, step.results, strict=True), 1):
        which = f"call {place} of {len(step.calls)}"
        tool = f", of {plain(call.name)}" if call.name in step.tools else ""
        yield _fact(f"{heading}{which.capitalize()}{tool}: {_ended(call, result)}.")
        heading = ""
        if not (tool and _stands_in(call, step.reply.content)):
            yield Exhibit(kind="called", title="What was called:", data=_arguments(call), name=f"{where}{which}")
        for stream, text in (("standard output", result.stdout), ("standard error", result.stderr)):
            if text.strip():
                name = f"{where}{stream} of {which}"
                yield Exhibit(kind="answered", title=f"Its {stream}:", data=text.rstrip(), name=name)


def _ended(call: ToolCall, result: ToolResult) -> str:
    if call.error is not None:
        return "it was not run"
    code = "" if result.exit_code is None else f", exit code {result.exit_code}"
    silent = "" if result.stdout.strip() or result.stderr.strip() else ", and printed nothing"
    part = "; its tool kept only part of what it printed" if result.truncated else ""
    return f"it {OUTCOMES[result.status]}{code}{silent}{part}"


def _stands_in(call: ToolCall, reply: str) -> bool:
    """Whether all that was called can be read in the reply, as fenced code can."""
    return all(isinstance(value, str) and value in reply for value in call.arguments.values())


def _arguments(call: ToolCall) -> str:
    called = {"tool": call.name, "arguments": dict(call.arguments)}
    return json.dumps(called, ensure_ascii=False, default=str)


def _files(step: Step, earlier: Sequence[Step], where: str) -> Iterator[Exhibit]:
    done = "\n".join(_done(step))
    if not step.files:
        left = "" if done else ", and it wrote none"
        yield _fact(f"## Files\n\nNone were there when it began{left}.")
    else:
        history, steps = lineage(earlier), {one.id: one for one in earlier}
        lines = [f"{quoted(path)}: {_origin(path, history.get(path, ()), steps)}" for path in step.files]
        yield _fact("## Files")
        name = f"{where}the files there when it began"
        yield Exhibit(kind="files", title="There when it began:", data="\n".join(lines), name=name)
        if not done:
            yield _fact("It changed none, and wrote none.")
    if done:
        yield Exhibit(kind="files", title="What it did to files:", data=done, name=f"{where}what it did to files")


def _origin(path: str, history: Sequence[tuple[str, FileChange]], steps: Mapping[str, Step]) -> str:
    changes = []
    for identity, change in history:
        step = steps[identity]
        if change.kind == "created" and path in step.files:
            changes.append(f"there before the first call of a tool{_size(change)}")
        else:
            changes.append(f"{change.kind} by {named(step)}{_size(change)}")
    return ", ".join(changes) or "there from the start"


def _done(step: Step) -> list[str]:
    """What the calls of a step did to files, in order. A tool that looks for the first time also finds what was there
    before; that is not the step's doing."""
    return [
        f"{change.kind} {quoted(change.path)}{_size(change)}"
        for result in step.results
        for change in result.files
        if change.kind != "created" or change.path not in step.files
    ]


def _size(change: FileChange) -> str:
    return "" if change.size is None else f" ({change.size} bytes)"


def _in_short(heading: str, steps: Sequence[Step], kind: Kind) -> Iterator[Exhibit]:
    if steps:
        yield _fact(heading)
    for step in steps:
        yield from _short(step, kind)


def _short(step: Step, kind: Kind) -> Iterator[Exhibit]:
    name, text = named(step), step.reply.content.strip()
    calls = zip(step.calls, step.results, strict=True)
    ends = [f"Call {place}: {_ended(call, result)}." for place, (call, result) in enumerate(calls, 1)]
    facts = [fact for fact in (*ends, _ending(step), *of_step(step)) if fact]
    yield Exhibit(kind=kind, title="\n".join((f"## {name}", *facts)), name=name)
    if text:
        part = "" if len(text) <= BEGINNING else f" (the first {BEGINNING} of {len(text)} characters)"
        yield Exhibit(kind=kind, title=f"Its reply{part}:", data=text[:BEGINNING], name=name)
    for place, result in enumerate(step.results, 1):
        if result.status != "ok" and (error := result.stderr.rstrip()):
            last = error[-LAST_LINE:].splitlines()[-1]
            yield Exhibit(kind=kind, title=f"The end of standard error of call {place}:", data=last, name=name)
    if done := _done(step):
        yield Exhibit(kind=kind, title="What it did to files:", data="\n".join(done), name=name)


def _checked(findings: Sequence[str], heading: str = "## Checked by machine") -> Iterator[Exhibit]:
    if findings:
        yield _fact("\n".join((heading, *(f"- {finding}" for finding in findings))))


def _found(step: Step, where: str) -> Iterator[Exhibit]:
    if lines := looked_into(step):
        name = f"{where}what was found in the files"
        yield Exhibit(kind="found", title="What was found in the files:", data="\n".join(lines), name=name)


def _truth(scene: Scene) -> Iterator[Exhibit]:
    truth = scene.task.reference if scene.truth is None else scene.truth
    if truth is not None:
        yield Exhibit(kind="truth", title="# The truth", data=truth, name="the truth")


def _told_of(scene: Scene, number: int) -> Iterator[Exhibit]:
    """What is told of the truth about one action of several."""
    if scene.truth is not None:
        title, name = f"## The truth about action {number}", f"the truth about action {number}"
        yield Exhibit(kind="truth", title=title, data=scene.truth, name=name)


def _outcome(outcome: Mapping[str, float] | None) -> Iterator[Exhibit]:
    if outcome is not None:
        lines = (f"- {plain(name)}: {value:g}" for name, value in outcome.items())
        yield _fact("\n".join(("# The outcome", *lines)))
