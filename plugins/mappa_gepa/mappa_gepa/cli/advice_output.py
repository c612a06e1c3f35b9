"""How advice on a team is printed."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

from mappa.commands import Console, Name, columns_table
from mappa_gepa.advise.fixes import TRAINED, FixKind
from mappa_gepa.cli.improve import format_bounds, to_builtins
from mappa_gepa.stored_search import agent_word

if TYPE_CHECKING:
    from mappa.statistics import Interval
    from mappa_gepa.advise.advice import Advice, RankedFix
    from mappa_gepa.advise.fixes import Cost

SUGGESTED_ROLLOUTS = 300
CHANGES: Mapping[FixKind, str] = {
    "swap": "Swap the policies of {agent} and {other}",
    "prompt": "Change the prompt of {agent}",
    "sft": "Train {agent} on the coach's corrections",
    "adapter": "Give {agent} an adapter and train it",
    "train": "Train {agent}",
    "model": "Give {agent} {policy}",
}
"""What a fix changes, as a recommendation."""


def show_advice(console: Console, advice: Advice, settings: Sequence[str]) -> None:
    """Print the whole advice; `settings` are the user's `key=value` words, which belong to the next command."""
    for line in _evidence_lines(advice):
        console.print(line, soft_wrap=True, highlight=False, markup=False)
    console.print(_headroom_table(advice))
    console.print(_fixes_table(advice))
    for line in _closing_lines(advice, settings):
        console.print(line, soft_wrap=True, highlight=False, markup=False)


def advice_json(advice: Advice, settings: Sequence[str]) -> dict[str, Any]:
    """The advice as JSON values; shares are 0-1, and what is unknown is null."""
    return {
        "run": str(advice.run),
        "evidence": to_builtins(advice.evidence),
        "recommended": {
            "choice": advice.choice,
            "agent": None if advice.chosen is None else advice.chosen.fix.agent,
            "policy": None if advice.chosen is None else advice.chosen.fix.policy,
            "other": None if advice.chosen is None else advice.chosen.fix.other,
            "sentence": sentence(advice),
            "command": next_command(advice, settings),
        },
        "fixes": [
            {
                "agent": one.fix.agent,
                "fix": one.fix.kind,
                "policy": one.fix.policy,
                "other": one.fix.other,
                "gain": to_builtins(one.gain),
                "gains": one.gains,
                "rests_on": _basis(one) if one.gain is None else "trial",
                "stopped": None if one.trial is None else one.trial.stopped,
                "tasks": None if one.trial is None else one.trial.tasks,
                "cost": to_builtins(one.cost),
                "usd_per_rollout": None if one.trial is None else one.trial.usd_per_rollout,
            }
            for one in advice.fixes
        ],
        "trials": {"rollouts": advice.rollouts, "usd": advice.usd},
    }


def sentence(advice: Advice) -> str:
    """The recommendation."""
    if advice.chosen is not None:
        fix, gain, trial = advice.chosen.fix, advice.chosen.gain, advice.chosen.trial
        assert gain is not None and trial is not None  # only what was tried is chosen
        change = CHANGES[fix.kind].format(agent=fix.agent, policy=fix.policy, other=fix.other)
        return f"{change}: {_points(gain)} points on {trial.tasks} held-out tasks."
    if advice.choice == "tools or tasks":
        return (
            f"Change no agent: {advice.evidence.unblamed.mean:.0%} is lost where nobody is blamed, certainly more than "
            "by any agent. Look at tools and tasks, and at faults that the coach does not see."
        )
    if advice.choice == "nothing" and advice.rollouts:
        return "Leave the team as it is: of what was tried, nothing gains for certain."
    if advice.choice == "nothing":
        return "Leave the team as it is: mending one agent gives next to nothing."
    agent, headroom = max(advice.evidence.headroom.items(), key=lambda item: item[1].mean)
    return (
        f"Cannot be told: nothing was tried, and headroom is no gain. Begin with {agent}, which has most "
        f"({100 * headroom.mean:.1f} points)."
    )


def next_command(advice: Advice, settings: Sequence[str]) -> str:
    """What to type next."""
    words = [shlex.quote(word) for word in settings]
    run = shlex.quote(str(advice.run))
    if advice.chosen is not None:
        trial, fix = advice.chosen.trial, advice.chosen.fix
        given = [f"--config {run}/config.yaml"]
        if trial is not None and trial.settings is not None:
            given.append(f"--config {shlex.quote(str(trial.settings))}")
        if fix.policy is not None:
            given.append(shlex.quote(agent_word(fix.agent, "policy", fix.policy)))
        if trial is not None and fix.kind == "swap":
            given += [shlex.quote(word) for word in trial.words]
        if fix.kind not in TRAINED:
            given += [f"policies.{section}.from={run}@last" for section in advice.trained]
        return " ".join(["mappa eval", *given, *words])
    if advice.choice == "cannot be told":
        return " ".join([f"mappa advise {run} --rollouts {SUGGESTED_ROLLOUTS} --proposer OFFER", *words])
    return f"mappa observe {run}"


def _evidence_lines(advice: Advice) -> Iterator[str]:
    seen = advice.evidence
    left_out = f"; {seen.unjudged:,} without verdict or result left out" if seen.unjudged else ""
    yield (
        f"team      {seen.metric} {seen.success.mean:.1%}{format_bounds(seen.success, '.1%')} in {seen.rollouts:,} "
        f"{seen.split} rollouts of {seen.tasks:,} tasks{left_out}"
    )


def _headroom_table(advice: Advice) -> Table:
    """What a fix of one agent could give at most."""
    table = columns_table("agent", "headroom: at most so many points")
    for agent, headroom in sorted(advice.evidence.headroom.items(), key=lambda item: -item[1].mean):
        table.add_row(Name(agent), _points(headroom))
    table.add_row("(nobody is blamed)", _points(advice.evidence.unblamed))
    return table


def _fixes_table(advice: Advice) -> Table:
    table = columns_table("agent", "fix", "gain, points", "rollouts", "dollars", "hours", "tasks", text=2)
    table.padding = (0, 1, 0, 0)
    winners = [one for one in advice.fixes if one.gains]
    for one in winners:
        table.add_row(*_cells(one))
    table.add_row("-", "nothing", "0", "0", "0", "0", "-")
    for one in advice.fixes:
        if not one.gains:
            table.add_row(*_cells(one))
    return table


def _cells(one: RankedFix) -> tuple[Any, ...]:
    gain = "cannot be told" if one.gain is None else _points(one.gain, "+.0f")
    return Name(one.fix.agent), Name(one.fix.name), gain, *_cost_cells(one.cost), _basis(one)


def _cost_cells(cost: Cost) -> tuple[str, str, str]:
    about = "" if cost.measured else "~"
    usd = "unknown" if cost.usd is None else f"{about}{cost.usd:.2f}"
    hours = "unknown" if cost.hours is None else f"{about}{cost.hours:.2f}"
    return f"{about}{cost.rollouts:,}", usd, hours


def _basis(one: RankedFix) -> str:
    if one.trial is None:
        return "not tried"
    if one.trial.gain is None:
        return "none found"
    return f"{one.trial.tasks}{' stopped' if one.trial.stopped else ''}"


def _closing_lines(advice: Advice, settings: Sequence[str]) -> Iterator[str]:
    if advice.rollouts:
        usd = "of unknown price" if advice.usd is None else f"${advice.usd:.4f}"
        yield f"trials    {advice.rollouts:,} rollouts; {usd}"
    if any(one.fix.kind in TRAINED and one.trial is None for one in advice.fixes):
        yield "training  where it is not tried, --train with enough --rollouts tries it"
    if any(not one.cost.measured for one in advice.fixes):
        yield "~         estimated from the run, without the proposer and machines of your own"
    yield f"advice    {sentence(advice)}"
    yield f"next      {next_command(advice, settings)}"


def _points(value: Interval, spec: str = "+.1f") -> str:
    if value.low is None or value.high is None:
        return f"{100 * value.mean:{spec}}"
    return f"{100 * value.mean:{spec}} [{100 * value.low:{spec}}, {100 * value.high:{spec}}]"
