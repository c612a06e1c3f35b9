"""Findings of machine checks in our own words, outside of fences: they hold names alone, quoted where needed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from mappa_core.coaching.data_fences import quote_name
from mappa_core.records import Breach, FileChange, Role, Step
from mappa_core.tools.workspace import file_lineage


def step_name(step: Step) -> str:
    """Return the display name of a step: its agent and turn, from 1."""
    return f"{quote_name(step.agent)} (turn {step.turn + 1})"


def step_findings(step: Step) -> tuple[str, ...]:
    return tuple(_describe_breach(step, breach) for breach in step.breaches)


def inspection_lines(step: Step) -> tuple[str, ...]:
    """Return the workflow's findings in the files after `step`, line by line, for a fence: they may quote the files."""
    # A breach of presence has no reason; its detail is in our own words and stands among the findings already.
    details = tuple(
        f"{quote_name(breach.path)}: {breach.detail}" for breach in step.breaches if breach.reason and breach.detail
    )
    findings = () if step.inspection is None else step.inspection.findings
    return (*details, *findings)


def team_findings(
    team: Mapping[str, Role], given: Iterable[str], steps: Sequence[Step], later: Sequence[Step] = (), *, is_over: bool
) -> tuple[str, ...]:
    """Describe the files that a role needs and that were missing or broken after the last of `steps`, and why. `given`
    are the files that came with the task, `later` the later steps, if the coach may know them. If the trajectory has
    not ended (`is_over`), a file whose producer can still act is not missing yet: an output that is due and missing is
    a breach, so a step without that breach was not its producer's last one."""
    needs: dict[str, list[str]] = {}
    for agent, role in team.items():
        for path in role.needs:
            needs.setdefault(path, []).append(quote_name(agent))
    if not needs:
        return ()
    broken = _broken_files(steps)
    present = {*given, *_files_after(steps[-1])}
    all_steps = (*steps, *later)
    history = file_lineage(all_steps)
    findings = []
    for path, needed_by in needs.items():
        if path not in present:
            why = _why_gone(history.get(path, ()), steps, later) or _why_unwritten(path, team, all_steps, is_over)
        elif path in broken:
            step, breach = broken[path]
            why = f"{step_name(step)} left it broken{_fault_suffix(breach)}"
        else:
            continue
        findings.append(f"{quote_name(path)}, which {' and '.join(needed_by)} needs: {why}.")
    return tuple(findings)


def _describe_breach(step: Step, breach: Breach) -> str:
    path, agent = quote_name(breach.path), quote_name(breach.agent)
    fault = _fault_suffix(breach)
    match breach.kind:
        case "missing_input":
            return f"{path}, which {agent} needs, was not there when {step_name(step)} began."
        case "missing_output":
            return f"{path}, which {agent} has to make, was due and not there when {step_name(step)} ended."
        case "broken_input":
            return f"{path}, which {agent} needs, could not be used when {step_name(step)} began{fault}."
        case "broken_output":
            return f"{path}, which {agent} has to make, could not be used when {step_name(step)} ended{fault}."


def _fault_suffix(breach: Breach) -> str:
    return f": {quote_name(breach.reason)}" if breach.reason else ""


def _broken_files(steps: Sequence[Step]) -> dict[str, tuple[Step, Breach]]:
    """Return the files that a step left broken and no later step rewrote."""
    broken: dict[str, tuple[Step, Breach]] = {}
    for step in steps:
        # Changes before breaches: what the step left broken it may have written itself.
        for result in step.results:
            for change in result.files:
                broken.pop(change.path, None)
        for breach in step.breaches:
            if breach.kind == "broken_output":
                broken[breach.path] = (step, breach)
    return broken


def _files_after(step: Step) -> set[str]:
    files = set(step.files)
    for result in step.results:
        for change in result.files:
            if change.kind == "deleted":
                files.discard(change.path)
            else:
                files.add(change.path)
    return files


def _why_gone(changes: Sequence[tuple[str, FileChange]], steps: Sequence[Step], later: Sequence[Step]) -> str | None:
    """Explain why a written file is missing; None if no action wrote it."""
    by_id = {step.id: step for step in (*steps, *later)}
    before = [(by_id[step], change.kind) for step, change in changes if by_id[step] in steps]
    writers_after = [by_id[step] for step, change in changes if by_id[step] in later and change.kind != "deleted"]
    lost = "not there yet"
    if before:
        last_step, last_kind = before[-1]
        what = "deleted it" if last_kind == "deleted" else "wrote it, and it is no longer there"
        lost = f"{step_name(last_step)} {what}"
    if writers_after:
        return f"{lost}; {step_name(writers_after[0])} wrote it later"
    return lost if before else None


def _why_unwritten(path: str, team: Mapping[str, Role], steps: Sequence[Step], is_over: bool) -> str:
    makers = [agent for agent, role in team.items() if path in role.produces]
    if not makers:
        return "no action wrote it, and nobody in the team has to make it"
    statuses = []
    for maker in makers:
        own_steps = [step for step in steps if step.agent == maker]
        statuses.append(_maker_status(maker, path, own_steps, is_over))
    return "; ".join(statuses)


def _maker_status(maker: str, path: str, steps: Sequence[Step], is_over: bool) -> str:
    who = f"{quote_name(maker)}, who has to make it,"
    if not steps:
        return f"no action wrote it; {who} never acted" if is_over else f"not there yet; {who} has not acted yet"
    last = steps[-1]
    if any(breach.kind == "missing_output" and breach.path == path for breach in last.breaches):
        return f"no action wrote it; it was due by the end of {step_name(last)}"
    if is_over:
        return f"no action wrote it; {who} acted last as {step_name(last)}"
    return f"not there yet; {who} had turns left after {step_name(last)}"
