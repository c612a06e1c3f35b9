"""What plays came to that nobody trained on, in words that `mappa runs list` and `mappa report` print."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mappa.cli.formats import format_count, format_problem_count, format_share

if TYPE_CHECKING:
    from mappa.look.view.plays import PlaysSummary


def describe_plays(plays: PlaysSummary) -> Iterator[str]:
    """Lines on the outcome of plays, and on whom verdicts blame for those that did not succeed."""
    count = format_count(plays.count, "play")
    if not plays.has_outcome:
        yield f"{count} of which no outcome is known"
    else:
        problems = format_problem_count(plays.problems, plays.clusters, (plays.known,))
        shares = ", ".join(f"{name} {format_share(share)}" for name, share in plays.shares.items())
        yield f"{shares} over {problems}, 95 % intervals; {plays.unsuccessful:,} of {count} did not succeed"
    if plays.judged:
        yield f"to blame in those: {describe_blame(plays)}"
    for kind, number in plays.failures.items():
        yield f"ended early: {number:,} by {kind}"


def describe_blame(plays: PlaysSummary) -> str:
    """Whom verdicts blame in how many of the plays that did not succeed, or of all where no outcome is known."""
    if not plays.judged:
        return "not judged"
    counts = {**plays.blame.ranked, "cannot tell": plays.blame.unblamed}
    return ", ".join(f"{name} {count:,}" for name, count in counts.items() if count) or "nobody"
