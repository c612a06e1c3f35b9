"""`mappa.compare`: trained runs, paired on the same held-out tasks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mappa.look.compare import Comparison, compare_arms
from mappa.look.run_results import RunResult, differing_settings, group_by_arm, read_result
from mappa.notebook.short_errors import with_short_errors
from mappa.notebook.trained_run import TrainedRun
from mappa_core import ConfigError

RunLike = TrainedRun | Path | str


@with_short_errors
def compare(
    *runs: RunLike,
    by: Sequence[str] = (),
    against: str | None = None,
    measure: str | None = None,
    **arms: RunLike | Sequence[RunLike],
) -> Comparison:
    """Compare runs as `mappa compare` does: paired on the same held-out tasks, p-values adjusted for all pairs.

    Args:
        runs: what `train` returned, or folders of runs. Those that differ in nothing but their seed are one arm.
        arms: instead of `runs`, arms by names of your own, each a run or runs of several seeds: `old=first,
            new=second`.
        by: settings that make an arm, as in `("coach.use",)`; else all in which the runs differ.
        against: the arm that all others are compared with; None compares every pair.
        measure: a figure of the workflow in place of its metric.

    Raises:
        RunError: a run did not come to its end, or has no evaluation.
        ConfigError: the runs evaluated other tasks, drew other samples or were graded otherwise; or a name is unknown.
    """
    if bool(runs) == bool(arms) or (arms and by):
        raise ConfigError("name the runs, and how they are grouped by `by`; or name groups: compare(old=first, new=…)")
    named = {name: [group] if isinstance(group, RunLike) else list(group) for name, group in arms.items()}
    read = {name: [_read(run) for run in group] for name, group in named.items()}
    results = [_read(run) for run in runs]
    groups = read or group_by_arm(results, by)
    return compare_arms(groups, measure=measure, against=against, named_by=by or differing_settings(results))


def _read(run: RunLike) -> RunResult:
    return read_result(run.folder if isinstance(run, TrainedRun) else Path(run))
