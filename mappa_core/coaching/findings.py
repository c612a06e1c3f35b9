"""What was checked by machine, in words: hand-off contracts of a step and of the whole team.

The words are ours and stand outside of fences; in them stand only names that the workflow gave.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from mappa_core.coaching.fences import plain
from mappa_core.records import Breach, FileChange, Role, Step
from mappa_core.tools.workspace import lineage


def named(step: Step) -> str:
    """The name of a step for people: its agent and which of its turns it is, from 1."""
    return f"{plain(step.agent)} (turn {step.turn + 1})"


def of_step(step: Step) -> tuple[str, ...]:
    """The breaches of `step`, in words."""
    return tuple(_breach(step, breach) for breach in step.breaches)


def looked_into(step: Step) -> tuple[str, ...]:
    """What the workflow found in the files after `step`, line by line. Names in it may come from whoever wrote the
    files, so that it has to stand in a fence."""
    details = (f"{breach.path}: {breach.detail}" for breach in step.breaches if breach.reason and breach.detail)
    return (*details, *(() if step.inspection is None else step.inspection.findings))


def of_team(
    team: Mapping[str, Role],
    given: Iterable[str],
    steps: Sequence[Step],
    later: Sequence[Step] = (),
    *,
    over: bool,
) -> tuple[str, ...]:
    """Files that a role needs and that were not there after the last of `steps`, or were broken, and why.

    Args:
        given: files that came with the task.
        later: what came after, where the coach may know it.
        over: whether `steps` and `later` are all there will ever be. Where they are not, a file whose maker can still
            act is not missing yet; whether it can is told by its last step: an output that is due and not there is a
            breach of it, so that a step without the breach was not the last one by contract.
    """
    needs = _needs(team)
    if not needs:
        return ()
    broken = _broken(steps)
    there = {*given, *_files_after(steps[-1])}
    history = {path: changes for path, changes in lineage((*steps, *later)).items() if path not in there}
    found = []
    for path, needed_by in needs.items():
        if path not in there:
            why = _rewritten(history.get(path, ()), steps, later) or _unwritten(path, team, (*steps, *later), over)
            found.append(f"{plain(path)}, which {_joined(needed_by)} needs: {why}.")
        elif path in broken:
            step, breach = broken[path]
            found.append(
                f"{plain(path)}, which {_joined(needed_by)} needs: {named(step)} left it broken{_fault(breach)}."
            )
    return tuple(found)


def _breach(step: Step, breach: Breach) -> str:
    path, agent = plain(breach.path), plain(breach.agent)
    match breach.kind:
        case "missing_input":
            return f"{path}, which {agent} needs, was not there when {named(step)} began."
        case "missing_output":
            return f"{path}, which {agent} has to make, was due and not there when {named(step)} ended."
        case "broken_input":
            return f"{path}, which {agent} needs, could not be used when {named(step)} began{_fault(breach)}."
        case "broken_output":
            return f"{path}, which {agent} has to make, could not be used when {named(step)} ended{_fault(breach)}."


def _fault(breach: Breach) -> str:
    """The kind of fault of a broken file."""
    return f": {plain(breach.reason)}" if breach.reason else ""


def _broken(steps: Sequence[Step]) -> dict[str, tuple[Step, Breach]]:
    """Files that an action left broken and that no later one wrote again."""
    found: dict[str, tuple[Step, Breach]] = {}
    for step in steps:
        for change in (change for result in step.results for change in result.files):
            found.pop(change.path, None)
        for breach in step.breaches:
            if breach.kind == "broken_output":
                found[breach.path] = (step, breach)
    return found


def _files_after(step: Step) -> set[str]:
    files = set(step.files)
    for result in step.results:
        for change in result.files:
            (files.discard if change.kind == "deleted" else files.add)(change.path)
    return files


def _needs(team: Mapping[str, Role]) -> dict[str, list[str]]:
    """Every file that some role needs -> the agents that need it."""
    needs: dict[str, list[str]] = {}
    for agent, role in team.items():
        for path in role.needs:
            needs.setdefault(path, []).append(agent)
    return needs


def _rewritten(changes: Sequence[tuple[str, FileChange]], steps: Sequence[Step], later: Sequence[Step]) -> str | None:
    """Why a file that some action wrote is not there; None where no action did."""
    by_id = {step.id: step for step in (*steps, *later)}
    before = [(by_id[step], change.kind) for step, change in changes if by_id[step] in steps]
    after = [by_id[step] for step, change in changes if by_id[step] in later and change.kind != "deleted"]
    if before and before[-1][1] == "deleted":
        lost = f"{named(before[-1][0])} deleted it"
    elif before:
        lost = f"{named(before[-1][0])} wrote it, and it is no longer there"
    else:
        lost = "not there yet"
    if after:
        return f"{lost}; {named(after[0])} wrote it later"
    return lost if before else None


def _unwritten(path: str, team: Mapping[str, Role], steps: Sequence[Step], over: bool) -> str:
    """Why a file that no action wrote is not there."""
    makers = [agent for agent, role in team.items() if path in role.produces]
    if not makers:
        return "no action wrote it, and nobody in the team has to make it"
    return "; ".join(
        _from_maker(maker, path, [step for step in steps if step.agent == maker], over) for maker in makers
    )


def _from_maker(maker: str, path: str, steps: Sequence[Step], over: bool) -> str:
    who = f"{plain(maker)}, who has to make it,"
    if not steps:
        return f"no action wrote it; {who} never acted" if over else f"not there yet; {who} has not acted yet"
    last = steps[-1]
    if any(breach.kind == "missing_output" and breach.path == path for breach in last.breaches):
        return f"no action wrote it; it was due by the end of {named(last)}"
    if over:
        return f"no action wrote it; {who} acted last as {named(last)}"
    return f"not there yet; {who} had turns left after {named(last)}"


def _joined(names: Sequence[str]) -> str:
    return " and ".join(plain(name) for name in names)
