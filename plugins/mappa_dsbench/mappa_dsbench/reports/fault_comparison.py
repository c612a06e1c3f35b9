"""Compares the faults of each agent's first actions before and after training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.table import Table as Grid

from mappa.commands import Console
from mappa.runs import RunReader
from mappa_core import RunError, Step
from mappa_dsbench.roles import ROLES

NO_PROGRAM, FAILED = "no_program", "failed"
"""Codes of an action without a program and of one whose program failed; all other codes are faults of files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultCount:
    """The number of an agent's first actions with one fault, `before` and `after` training."""

    code: str
    before: int
    after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentFaults:
    """The numbers of an agent's first actions in the evaluations before and after training, and of their distinct
    programs. Faults are ordered by their count before."""

    agent: str
    before: int
    after: int
    programs_before: int
    programs_after: int
    faults: tuple[FaultCount, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultComparison:
    """A comparison of a run's evaluations after `first` and `last` iterations."""

    first: int
    last: int
    agents: tuple[AgentFaults, ...]

    def as_json(self) -> dict[str, Any]:
        return {"schema": 1, **asdict(self)}


def compare_faults(run: Path) -> FaultComparison:
    """Compare the first evaluation of a stored run with its last.

    Raises:
        RunError: the folder is no run, or has fewer than two evaluations.
    """
    with RunReader(run) as reader:
        done = sorted({row.iteration for row in _ended_rows(reader, None)})
        if len(done) < 2:
            raise RunError(f"{run}: what was unlearned shows between two evaluations, and the run has {len(done)}")
        before, after = (_first_actions(reader, iteration) for iteration in (done[0], done[-1]))
    agents = tuple(_compare_agent(agent, before[agent], after[agent]) for agent in ROLES)
    return FaultComparison(first=done[0], last=done[-1], agents=agents)


def _ended_rows(reader: RunReader, iteration: int | None) -> Iterator[Any]:
    return (row for row in reader.trajectories.where(split="eval", iteration=iteration) if row.status != "open")


def _first_actions(reader: RunReader, iteration: int) -> Mapping[str, list[Step]]:
    actions: dict[str, list[Step]] = {agent: [] for agent in ROLES}
    for row in _ended_rows(reader, iteration):
        for step in reader.trajectory(row.id).steps:
            if step.turn == 0:
                actions[step.agent].append(step)
    return actions


def _compare_agent(agent: str, before: Sequence[Step], after: Sequence[Step]) -> AgentFaults:
    then, now = (Counter(code for step in steps for code in faults_of_action(step)) for steps in (before, after))
    codes = sorted({*then, *now}, key=lambda code: (-then[code], code))
    return AgentFaults(
        agent=agent,
        before=len(before),
        after=len(after),
        programs_before=len(_distinct_programs(before)),
        programs_after=len(_distinct_programs(after)),
        faults=tuple(FaultCount(code=code, before=then[code], after=now[code]) for code in codes),
    )


def _distinct_programs(steps: Sequence[Step]) -> set[str]:
    return {call.arguments["code"] for step in steps for call in step.calls if call.error is None}


def faults_of_action(step: Step) -> frozenset[str]:
    """Return the distinct faults of an action. A failed program is not charged with files that it did not make."""
    if not step.results:
        return frozenset((NO_PROGRAM,))
    if any(result.status != "ok" for result in step.results):
        return frozenset((FAILED,))
    return frozenset() if step.inspection is None else frozenset(one["code"] for one in step.inspection.facts["faults"])


def print_comparison(comparison: FaultComparison) -> None:
    """Print the comparison as a table."""
    grid = Grid(box=None, header_style="bold")
    for name in ("first actions with", f"after {comparison.first}", f"after {comparison.last}"):
        grid.add_column(name, justify="right" if name.startswith("after") else "left")
    for one in comparison.agents:
        grid.add_row(f"[bold]{one.agent}[/]", f"of {one.before}", f"of {one.after}")
        for fault in one.faults:
            grid.add_row(
                f"  {fault.code}", _format_share(fault.before, one.before), _format_share(fault.after, one.after)
            )
        grid.add_row("  distinct programs", str(one.programs_before), str(one.programs_after))
    Console().print(grid)


def _format_share(count: int, whole: int) -> str:
    return f"{count / whole:.0%}" if whole else "-"
