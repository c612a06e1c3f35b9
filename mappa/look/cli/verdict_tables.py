"""Output shared by commands that judge recorded actions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.progress import Progress
from rich.table import Table

from mappa.cli.console import Console, escape
from mappa_core import GuardStop
from mappa_core.config.schema import CoachSection
from mappa_core.redaction import clean_line

if TYPE_CHECKING:
    from mappa.look.coach_eval.bootstrap import Estimate
    from mappa.look.coach_eval.metrics import VerdictCounts
    from mappa_core import Verdict

MAX_SHOWN_REASONS = 5
"""Maximum reasons shown per coach."""


class VerdictBar:
    """A progress bar of verdicts."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._task = bars.add_task("verdicts", total=None)

    def start(self, verdicts: int) -> None:
        self._bars.update(self._task, total=verdicts)

    def advance(self, verdict: Verdict) -> None:
        self._bars.advance(self._task)


@contextmanager
def verdict_bar(console: Console, *, quiet: bool) -> Iterator[VerdictBar]:
    """A progress bar on a terminal; nothing elsewhere."""
    with Progress(console=console, transient=True, disable=quiet or not console.is_terminal) as bars:
        yield VerdictBar(bars)


def make_table(*names: str, text: int = 1) -> Table:
    """Build an empty table: the first `text` columns are for text, the others for numbers."""
    table = Table(box=None, header_style="dim", pad_edge=False)
    for place, name in enumerate(names):
        words = place < text
        table.add_column(escape(name), justify="left" if words else "right", overflow="fold", no_wrap=not words)
    return table


def format_estimate(value: Estimate | None, spec: str = ".2f", unit: float = 1.0) -> str:
    """Format an estimate with its 95 % interval."""
    if value is None:
        return "-"
    text = format(unit * value.value, spec)
    if value.low is None or value.high is None:
        return text
    return f"{text} [{unit * value.low:{spec}}, {unit * value.high:{spec}}]"


def show_reasons(console: Console, counts: VerdictCounts) -> None:
    """Print why scores are missing, the most frequent reasons first."""
    reasons = list(counts.reasons.items())
    for reason, times in reasons[:MAX_SHOWN_REASONS]:
        console.print(f"{times:7,} x {clean_line(reason)}", markup=False, highlight=False, soft_wrap=True)
    if len(reasons) > MAX_SHOWN_REASONS:
        rest = sum(times for _, times in reasons[MAX_SHOWN_REASONS:])
        console.print(f"{rest:7,} x {len(reasons) - MAX_SHOWN_REASONS} other reasons", highlight=False)


def check_answered(judged: Sequence[VerdictCounts], max_missing: float = CoachSection.max_missing) -> None:
    """Raise GuardStop if all verdicts of a coach failed, or a larger share than `max_missing`: what the others say is
    that of a sample which nobody chose."""
    for counts in judged:
        if not counts.failed or (counts.failed < counts.verdicts and counts.failed <= max_missing * counts.verdicts):
            continue
        if counts.failed == counts.verdicts:
            what = f"all {counts.verdicts:,} verdicts failed"
        else:
            limit = f"coach.max_missing={max_missing:.0%}"
            what = f"{counts.failed:,} of {counts.verdicts:,} verdicts failed, more than {limit}"
        failures = {why: times for why, times in counts.reasons.items() if why.startswith("failed: ")}
        (reason, times), *_ = Counter(failures).most_common(1)
        raise GuardStop(f"{what}, {times:,} of them by this: {reason.removeprefix('failed: ')}")
