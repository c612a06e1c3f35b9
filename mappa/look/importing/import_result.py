"""What an import came to: what is in the run, what was left out and why, and what its labels say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mappa.look.importing.ledger import Ledger
from mappa.look.importing.log_mapping import Format, LoggedTrajectory, LogMapping
from mappa.look.importing.trajectories import ImportedTrajectory
from mappa_core import NOBODY
from mappa_core.records import BLAME_BESIDE_AGENTS

MISMATCH = "the guilty agent is another one than acted in the guilty step"
ABSENT = "the guilty agent acts nowhere"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportCounts:
    """What went in and what came out: of the `entries` of a log (`unit`: messages or spans) `actions` are actions, and
    the others are counted in `left_out`, by reason. `without_text` rollouts have labels alone; rollouts
    `without_action` are not imported."""

    unit: str
    entries: int
    actions: int
    left_out: Mapping[str, int]
    without_text: int
    without_action: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelCounts:
    """Labels: rollouts with a guilty agent and with a guilty step, labelled steps by value, rollouts with a value of
    the whole, and rollouts whose labels say something odd, by what it is."""

    agents: int
    steps: int
    values: Mapping[str, int]
    wholes: int
    odd: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportResult:
    """The result of an import. Of its `trajectories`, which are new or `went_on` since they were read, `measured` have
    the outcome `correct`, the metric of the run. `problems` are what was not understood, with places: labels that were
    left out, scores that cannot be `correct`, and keys that mean nothing to the format; `unfinished` is what is still
    being written, and read the next time."""

    folder: Path
    format: Format
    is_new: bool
    """Whether the run was made now, and not added to."""
    trajectories: int
    recorded: tuple[str, ...]
    """Ids of the trajectories."""
    went_on: int
    tasks: int
    measured: int
    agents: dict[str, int]
    """Actions by agent."""
    counts: ImportCounts
    ledgers: Mapping[str, Ledger]
    """What is in the run and what is not, by file."""
    labels: LabelCounts
    problems: tuple[str, ...]
    unfinished: tuple[str, ...]


def count_agents(logs: Sequence[LoggedTrajectory]) -> dict[str, int]:
    """Actions by agent, in order of their first."""
    return dict(Counter(act.agent for log in logs for act in log.acts))


def count_entries(logs: Sequence[LoggedTrajectory], unit: str) -> ImportCounts:
    left_out: Counter[str] = Counter()
    for log in logs:
        left_out.update(log.left_out)
    return ImportCounts(
        unit=unit,
        entries=sum(log.entries for log in logs),
        actions=sum(len(log.acts) for log in logs),
        left_out=dict(left_out.most_common()),
        without_text=sum(not log.has_text for log in logs),
        without_action=sum(not log.acts for log in logs),
    )


def count_labels(imported: Sequence[ImportedTrajectory]) -> LabelCounts:
    labels = [label for one in imported for label in one.labels]
    acted = {step.id: step.agent for one in imported for step in one.trajectory.steps}
    agents = {one.trajectory.id: {step.agent for step in one.trajectory.steps} for one in imported}
    guilt = [label for label in labels if label.kind == "guilt"]
    of_agents = [label for label in guilt if label.agent not in BLAME_BESIDE_AGENTS]
    values = Counter(
        f"{label.value:+g}".replace("+0", "0") for label in labels if label.value is not None and label.step is not None
    )
    odd = {
        MISMATCH: sum(label.step is not None and acted[label.step] != label.agent for label in of_agents),
        ABSENT: sum(label.agent not in agents[label.trajectory] for label in of_agents),
    }
    return LabelCounts(
        agents=len({label.trajectory for label in guilt if label.agent is not None}),
        steps=len({label.trajectory for label in guilt if label.step is not None}),
        values=dict(values.most_common()),
        wholes=sum(label.kind == "quality" and label.step is None for label in labels),
        odd={what: count for what, count in odd.items() if count},
    )


def find_log_problems(logs: Sequence[LoggedTrajectory]) -> Iterator[str]:
    """Problems of rollouts and labels that were left out, with their places, and unread keys with their number and
    first place."""
    for log in logs:
        yield from (f"{log.place}: {problem}" for problem in log.problems)
    for log in logs:
        yield from (f"{log.place}: {problem}; this label is left out" for problem in log.labels.problems)
    first: dict[str, str] = {}
    for log in logs:
        for key in log.unread:
            first.setdefault(key, log.place)
    times = Counter(key for log in logs for key in log.unread)
    for key, count in times.items():
        yield f"{first[key]}: {key}: not read" + (f" (and in {count - 1:,} more)" if count > 1 else "")


def find_unused_keys(logs: Sequence[LoggedTrajectory], mapping: LogMapping) -> Iterator[str]:
    """Keys of outcomes and labels that an option names and no rollout has a value at."""
    tried = [problem for log in logs for problem in log.labels.problems]
    used = {
        "--guilty-agent": (mapping.guilty_agent, any(log.labels.agent is not None for log in logs)),
        "--guilty-step": (
            mapping.guilty_step,
            any(log.labels.step is not None or log.labels.agent == NOBODY for log in logs),
        ),
        "--guilt-category": (mapping.guilt_category, any(log.labels.category is not None for log in logs)),
        "--step-values": (mapping.step_values, any(log.labels.values for log in logs)),
    }
    for option, (key, is_used) in used.items():
        if key is not None and not is_used and not any(problem.startswith(key) for problem in tried):
            yield f"{key}: no rollout has a value there, and {option} names it"
    for name, key in mapping.outcomes.items():
        if not any(name in log.outcome for log in logs):
            yield f"{key}: no rollout has a value there, and --outcome names it"
