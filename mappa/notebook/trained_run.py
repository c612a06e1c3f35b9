"""`TrainedRun`: what a training came to, as a value that shows itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from mappa.cli.formats import format_count, format_problem_count, format_share
from mappa.cli.result_tables import format_gain
from mappa.look.counted_verdicts import count_failures, latest_counted, read_metric, with_counted_verdicts
from mappa.look.html import summary_html
from mappa.look.observe import Diagnosis, observe_run
from mappa.look.view.highlights import MAX_VERDICTS
from mappa.look.view.picture import Picture, draw_picture
from mappa.look.view.report import build_training_charts
from mappa.runs import RunReader, Table
from mappa.runs.html_table import html_table
from mappa.runs.rows import EvaluationRow
from mappa.runs.table import Row
from mappa.store.iteration_report import IterationReport
from mappa.store.summary import FigureSummary, Summary, read_summary
from mappa_core import RunError
from mappa_core.defaults.objects import ObjectPlugin
from mappa_core.records import Interval
from mappa_core.redaction import clean_line

T = TypeVar("T")


@dataclass(frozen=True, slots=True, repr=False)
class TrainedRun:
    """A run that was trained, in `folder`, and what it came to in `summary`.

    `before`, `after` and `gain` are shares of the held-out tasks (0-1) with 95 % intervals, None where they are
    unknown. Its tables are read from the folder whenever they are used, so that they are those of the run as it is.
    """

    folder: Path
    summary: Summary
    objects: ObjectPlugin | None = field(default=None, compare=False)
    """What it was trained with that no package offers; None of one that was read from its folder."""

    @classmethod
    def read(cls, folder: Path | str) -> TrainedRun:
        """Read a run that was trained before, here or by `mappa train`. Raises RunError if the folder is no run, or the
        run has not written its summary yet."""
        with RunReader(folder) as run:
            return cls(run.folder, read_summary(run.folder))

    @property
    def before(self) -> Interval | None:
        """The metric of the workflow on held-out tasks, before training."""
        return self._figures.before

    @property
    def after(self) -> Interval | None:
        """The same after training."""
        return self._figures.after

    @property
    def gain(self) -> Interval | None:
        """`after` minus `before`, paired on the same tasks."""
        return self._figures.gain

    @property
    def _figures(self) -> FigureSummary:
        return FigureSummary() if self.summary.eval is None else self.summary.eval

    @property
    def iterations(self) -> Table[IterationReport]:
        """The figures of every iteration."""
        return self._table(lambda run: run.iterations)

    @property
    def evaluations(self) -> Table[EvaluationRow]:
        """The evaluations on held-out tasks, in order."""
        return self._table(lambda run: run.evaluations)

    @property
    def failures(self) -> int:
        """The judged training rollouts that did not succeed."""
        return self._judged()[0]

    @property
    def blame(self) -> Mapping[str, int]:
        """In how many of the `failures` a verdict blames an agent, by agent."""
        return self._judged()[1]

    @property
    def diagnosis(self) -> Diagnosis:
        """Which agents fail, how often and why, in the last training rollouts: what `mappa observe RUN` prints."""
        return observe_run(self.folder)

    def plot(self) -> Picture:
        """Draw the accuracy on training and held-out tasks and the score of each agent over iterations."""
        with RunReader(self.folder) as run:
            iterations, evaluations = list(run.iterations), list(run.evaluations)
        if not iterations and not evaluations:
            raise RunError(f"{self.folder} has neither an iteration nor an evaluation to draw yet")
        return draw_picture(build_training_charts(self.summary, iterations, evaluations))

    def _judged(self) -> tuple[int, Mapping[str, int]]:
        with RunReader(self.folder) as run:
            metric = read_metric(run, self.summary)
            _, rows = latest_counted(run, limit=MAX_VERDICTS)
        counts = count_failures(rows, metric)
        return counts.looked_at, {judged.agent: judged.blamed for judged in counts.agents}

    def _table(self, choose: Callable[[RunReader], Iterable[Row]]) -> Table[Row]:
        def read() -> Iterable[Row]:
            with RunReader(self.folder) as run:
                return list(choose(run))

        return Table(read)

    def __repr__(self) -> str:
        summary = self.summary
        state = f"seed {summary.seed}, {summary.status} after {format_count(summary.iterations, 'iteration')}"
        lines = [f"TrainedRun({str(self.folder)!r}): {summary.plugin}/{summary.recipe}, {state}"]
        if (found := summary.eval) is not None:
            problems = format_problem_count(found.n, found.clusters, found.known)
            lines.append(f"  held-out {found.metric}: {_describe_gain(found)}, {problems}")
            lines += [f"  held-out {name}: {_describe_gain(figure)}" for name, figure in found.figures.items()]
        lines.append(f"  {self._describe_blame()}")
        return "\n".join(map(clean_line, lines))

    def _describe_blame(self) -> str:
        failures, blame = self._judged()
        named = ", ".join(f"{agent} in {count}" for agent, count in blame.items() if count)
        return f"to blame in {format_count(failures, 'failed rollout')}: {named or 'no verdict names anybody'}"

    def _repr_html_(self) -> str:
        failures, blame = self._judged()
        blamed = [(agent, str(count)) for agent, count in blame.items()]
        with RunReader(self.folder) as run:
            summary = with_counted_verdicts(self.summary, run)
        return (
            html_table("", (), [("run", str(self.folder))])
            + summary_html(summary)
            + html_table(f"to blame in {format_count(failures, 'failed rollout')}", ("", "rollouts"), blamed)
        )


def _describe_gain(figure: FigureSummary) -> str:
    shares = f"{format_share(figure.before)} -> {format_share(figure.after)}"
    return f"{shares}, gain {format_gain(figure)}"
