"""How figures are written: shares, counts, durations, and a dash for what is missing."""

from __future__ import annotations

from collections.abc import Sequence

from mappa_core.records import Interval


def format_problem_count(problems: int, clusters: int | None, known: Sequence[int] = ()) -> str:
    """Format the number of problems, the numbers of those that have a value where they are fewer, and the number of
    clusters that the intervals are based on."""
    fewer = " and ".join(dict.fromkeys(map(str, known))) + " of " if any(one < problems for one in known) else ""
    return f"{fewer}{problems} problems" + ("" if clusters is None else f" in {clusters} clusters")


def format_share(value: Interval | None, *, sign: bool = False) -> str:
    """Format a share with its 95 % interval, in per cent; `sign` for a gain."""
    if value is None:
        return "-"
    spec = "+.1f" if sign else ".1f"
    if value.low is None or value.high is None:
        return f"{100 * value.mean:{spec}} %"
    return f"{100 * value.mean:{spec}} % [{100 * value.low:{spec}}, {100 * value.high:{spec}}]"


def format_percent(value: float | None) -> str:
    """Format a share in per cent; a dash if there is none."""
    return "-" if value is None else f"{100 * value:.1f} %"


def format_or_dash(value: float | None, spec: str) -> str:
    """Format a number; a dash if there is none."""
    return "-" if value is None else format(value, spec)


def format_count(count: int, what: str) -> str:
    """Format a number of things; `what` is their name in the singular."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def format_duration(seconds: float) -> str:
    """Format a duration as M:SS, or H:MM:SS."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def describe_tool_faults(lost: int, retries: int) -> list[str]:
    """Describe the effects of tool failures, if there are any."""
    counts = {"rollouts lost to failures of tools": lost, "retries of tool calls": retries}
    return [f"{count} {what}" for what, count in counts.items() if count]
