"""What each agent stopped doing: the faults of its first actions, before a run learned anything and at its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as Grid

from mappa_core import Reader, RunError, Step
from mappa_dsbench.roles import ROLES

PAGE = 1000
NO_PROGRAM, FAILED = "no_program", "failed"
"""An action without a program, and one whose program failed; all others are faults of files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """How many of an agent's first actions had one fault: `before` and `after`, of as many actions as Agent says."""

    code: str
    before: int
    after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """The first actions of one agent in the evaluations before and after training, and the distinct programs among
    them. The faults stand in the order of how often they were there before."""

    agent: str
    before: int
    after: int
    programs_before: int
    programs_after: int
    faults: tuple[Fault, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unlearned:
    """A run's evaluations after `first` and `last` iterations, held against each other."""

    first: int
    last: int
    agents: tuple[Agent, ...]

    def as_json(self) -> dict[str, Any]:
        return {"schema": 1, **asdict(self)}


def unlearned(run: Path) -> Unlearned:
    """Compare the first evaluation of a stored run with its last.

    Raises:
        RunError: the folder is no run, or has no two evaluations.
    """
    with Reader(run) as reader:
        done = sorted({row.iteration for row in _rows(reader, None)})
        if len(done) < 2:
            raise RunError(f"{run}: what was unlearned shows between two evaluations, and the run has {len(done)}")
        before, after = (_first_actions(reader, iteration) for iteration in (done[0], done[-1]))
    agents = tuple(_agent(agent, before[agent], after[agent]) for agent in ROLES)
    return Unlearned(first=done[0], last=done[-1], agents=agents)


def _rows(reader: Reader, iteration: int | None) -> Iterator[Any]:
    offset = 0
    while page := reader.trajectories("eval", iteration, limit=PAGE, offset=offset):
        yield from (row for row in page if row.status != "open")
        offset += PAGE


def _first_actions(reader: Reader, iteration: int) -> Mapping[str, list[Step]]:
    found: dict[str, list[Step]] = {agent: [] for agent in ROLES}
    for row in _rows(reader, iteration):
        for step in reader.trajectory(row.id).steps:
            if step.turn == 0:
                found[step.agent].append(step)
    return found


def _agent(agent: str, before: Sequence[Step], after: Sequence[Step]) -> Agent:
    then, now = (Counter(code for step in steps for code in faults_of(step)) for steps in (before, after))
    codes = sorted({*then, *now}, key=lambda code: (-then[code], code))
    return Agent(
        agent=agent,
        before=len(before),
        after=len(after),
        programs_before=len(_programs(before)),
        programs_after=len(_programs(after)),
        faults=tuple(Fault(code=code, before=then[code], after=now[code]) for code in codes),
    )


def _programs(steps: Sequence[Step]) -> set[str]:
    return {call.arguments["code"] for step in steps for call in step.calls if call.error is None}


def faults_of(step: Step) -> frozenset[str]:
    """What was wrong with an action, each kind once. A program that failed is not charged with what it did not make."""
    if not step.results:
        return frozenset((NO_PROGRAM,))
    if any(result.status != "ok" for result in step.results):
        return frozenset((FAILED,))
    return frozenset() if step.inspection is None else frozenset(one["code"] for one in step.inspection.facts["faults"])


def show(found: Unlearned) -> None:
    """Print a table for people."""
    grid = Grid(box=None, header_style="bold")
    for name in ("first actions with", f"after {found.first}", f"after {found.last}"):
        grid.add_column(name, justify="right" if name.startswith("after") else "left")
    for one in found.agents:
        grid.add_row(f"[bold]{one.agent}[/]", f"of {one.before}", f"of {one.after}")
        for fault in one.faults:
            grid.add_row(f"  {fault.code}", _share(fault.before, one.before), _share(fault.after, one.after))
        grid.add_row("  distinct programs", str(one.programs_before), str(one.programs_after))
    Console().print(grid)


def _share(count: int, whole: int) -> str:
    return f"{count / whole:.0%}" if whole else "-"
