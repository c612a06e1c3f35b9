"""For notebooks: `%load_ext mappa.look.notebook` shows runs, results and comparisons as tables, and
`run.train(Progress())` shows a training while it goes on. Nothing of it is needed elsewhere."""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from mappa.cli.formats import format_problem_count, format_share
from mappa.cli.progress import RunProgress
from mappa.evaluation.heldout import Evaluation
from mappa.look.compare import Comparison, compare_arms, format_p, setting_notes
from mappa.look.counted_verdicts import with_counted_verdicts
from mappa.look.run_results import differing_settings, group_by_arm, read_result
from mappa.runs import RunReader
from mappa.store.agent_columns import AGENT_COLUMNS, AgentSummary
from mappa.store.iteration_report import IterationReport
from mappa.store.summary import EvalSummary, FigureSummary, StratumSummary, Summary
from mappa.training.run import TrainResult
from mappa_core import ConfigError
from mappa_core.redaction import clean

REFRESH_SECONDS = 0.5
"""Seconds between two updates of a cell's output."""
STATUSES: tuple[Literal["done", "failed", "open"], ...] = ("done", "failed", "open")


def compare_runs(
    *folders: Path | str, by: Sequence[str] = (), against: str | None = None, measure: str | None = None
) -> Comparison:
    """Compare runs as `mappa compare` does: those that differ in nothing but their seed, or in the settings `by`, are
    one arm. Raises RunError for a run without a result, ConfigError for runs that cannot be compared."""
    if not folders:
        raise ConfigError("name the runs that are compared")
    results = [read_result(Path(one)) for one in folders]
    named_by = by or differing_settings(results)
    return compare_arms(group_by_arm(results, by), measure=measure, against=against, named_by=named_by)


class Progress(RunProgress):
    """Shows in the output of a cell what a training does, how far it is, and its last results."""

    def __init__(self) -> None:
        super().__init__()
        self._handle: Any = None
        self._shown = 0.0
        self._evaluations: list[Evaluation] = []
        self._agents: Mapping[str, AgentSummary] = {}
        self._update()

    def show(self) -> None:
        if time.perf_counter() - self._shown >= REFRESH_SECONDS:
            self._update()

    def on_iteration_end(self, report: IterationReport) -> None:
        self._agents = report.agents
        self._update()

    def on_evaluation_end(self, evaluation: Evaluation) -> None:
        self._evaluations.append(evaluation)
        self._update()

    def _update(self) -> None:
        notebook = import_module("IPython.display")
        self._shown = time.perf_counter()
        html = notebook.HTML(self._html())
        if self._handle is None:
            self._handle = notebook.display(html, display_id=True)
        else:
            self._handle.update(html)

    def _html(self) -> str:
        bar = f'<progress value="{self.finished}" max="{max(self.rollouts, 1)}"></progress>'
        held_out = [
            (f"held-out {one.metric} after iteration {one.iteration}", format_share(one.interval))
            for one in self._evaluations
        ]
        return f"<div>{bar} {escape(self.describe())}</div>{html_table('', (), held_out)}{agents_html(self._agents)}"


def html_table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Build a table of HTML; of no rows nothing. Texts may be a stranger's: they are escaped, keys in them masked."""
    if not (body := "".join(f"<tr>{_cells('td', row)}</tr>" for row in rows)):
        return ""
    head = f"<thead><tr>{_cells('th', columns)}</tr></thead>" if columns else ""
    return f'<table><caption style="text-align: left">{_text(caption)}</caption>{head}<tbody>{body}</tbody></table>'


def _cells(tag: str, texts: Sequence[str]) -> str:
    sides = ("left", *["right"] * (len(texts) - 1))
    return "".join(
        f'<{tag} style="text-align: {side}">{_text(text)}</{tag}>' for side, text in zip(sides, texts, strict=True)
    )


def _text(text: str) -> str:
    return escape(clean(text))


def run_html(run: RunReader) -> str:
    """Show the rollouts of a run by split and how they ended, and its summary where it has one."""
    counts = {split: Counter(run.counts(split)) for split in ("train", "eval")}
    rows = [(split, *(str(found[one]) for one in STATUSES)) for split, found in counts.items() if found]
    return html_table(f"rollouts of {run.folder}", ("", *STATUSES), rows) + (
        "" if run.summary is None else summary_html(with_counted_verdicts(run.summary, run))
    )


def result_html(trained: TrainResult) -> str:
    """Show the folder of a finished run, and its summary."""
    return html_table("", (), [("run", str(trained.folder))]) + summary_html(trained.summary)


def summary_html(summary: Summary) -> str:
    """Show how a run stands, its gains, and its agents in the last iteration."""
    row = (f"{summary.plugin}/{summary.recipe}", *map(str, (summary.seed, summary.status, summary.iterations)))
    head = html_table("", ("recipe", "seed", "status", "iterations", "verdicts"), [(*row, str(summary.coach.verdicts))])
    return head + ("" if summary.eval is None else gains_html(summary.eval)) + agents_html(summary.agents)


def gains_html(results: EvalSummary) -> str:
    """Show every figure before and after training, and its gain: over all tasks and by stratum."""
    parts: dict[str, StratumSummary] = {"all": results, **results.strata}
    rows = [
        (f"{measure}, {name}", *_gain_cells(part if measure == results.metric else part.figures[measure]))
        for measure in (results.metric, *results.figures)
        for name, part in parts.items()
    ]
    problems = format_problem_count(results.n, results.clusters, results.known)
    return html_table(f"held-out tasks: {problems}, 95 % intervals", ("", "before", "after", "gain"), rows)


def _gain_cells(result: FigureSummary) -> tuple[str, str, str]:
    return format_share(result.before), format_share(result.after), format_share(result.gain, sign=True)


def agents_html(agents: Mapping[str, AgentSummary]) -> str:
    """Show the figures of each agent in an iteration."""
    rows = [(name, *(column.cell(figures) for column in AGENT_COLUMNS)) for name, figures in agents.items()]
    return html_table("agents in the last iteration", ("", *(column.title for column in AGENT_COLUMNS)), rows)


def comparison_html(compared: Comparison) -> str:
    """Show the mean of each arm, each pair's difference with what follows from it, and what else differs."""
    problems = format_problem_count(compared.problems, compared.clusters)
    arms = [(arm.name, ", ".join(map(str, arm.seeds)), format_share(arm.mean)) for arm in compared.arms]
    pairs = [
        (
            f"{pair.one} - {pair.other}",
            format_share(pair.difference, sign=True),
            format_p(pair.p_adjusted),
            pair.finding,
        )
        for pair in compared.pairs
    ]
    return (
        html_table(f"held-out {compared.measure}, {problems}, 95 % intervals", ("arm", "seeds", "mean"), arms)
        + html_table("", ("", "difference", "p, all tests", "finding"), pairs)
        + "".join(f"<div>{_text(note)}</div>" for note in setting_notes(compared))
    )


def load_ipython_extension(ipython: Any) -> None:
    """Show runs, results and comparisons as tables from now on."""
    # Libraries of models ask for widgets, which nothing here needs.
    warnings.filterwarnings("ignore", message="IProgress not found")
    formatter = ipython.display_formatter.formatters["text/html"]
    for kind, show in SHOWN.items():
        formatter.for_type(kind, show)


SHOWN = {
    RunReader: run_html,
    TrainResult: result_html,
    Summary: summary_html,
    EvalSummary: gains_html,
    Comparison: comparison_html,
}
"""What the extension shows, by type."""
