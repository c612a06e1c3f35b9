"""How a call shows what it is at: bars in the output of a cell, a live table on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from html import escape
from importlib import import_module
from typing import Any

from mappa.cli.console import Console
from mappa.cli.formats import format_share
from mappa.cli.progress import ConsoleListener, open_listener, show_alarms
from mappa.evaluation.heldout import Evaluation
from mappa.look.cli.verdict_tables import VerdictBar, verdict_bar
from mappa.look.html import agents_html
from mappa.runs.html_table import html_table
from mappa.store.agent_columns import AgentSummary
from mappa.store.iteration_report import IterationReport
from mappa.training.listener import Listener
from mappa_core import Verdict

REFRESH_SECONDS = 0.5
"""Seconds between two updates of a cell's output."""


class CellProgress(ConsoleListener):
    """Shows in the output of a cell what a training does, how far it is, and its last results."""

    def __init__(self, iterations: int) -> None:
        super().__init__(Console())
        self._iterations = iterations
        self._output = CellOutput()
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
        show_alarms(self._console, report)

    def on_evaluation_end(self, evaluation: Evaluation) -> None:
        self._evaluations.append(evaluation)
        self._update()

    def _update(self) -> None:
        self._shown = time.perf_counter()
        self._output.show(self._html())

    def _html(self) -> str:
        held_out = [
            (f"held-out {evaluation.metric} after iteration {evaluation.iteration}", format_share(evaluation.interval))
            for evaluation in self._evaluations
        ]
        run, now = (
            bar_html("iterations", self.done, self._iterations),
            bar_html("rollouts", self.finished, self.rollouts),
        )
        described = f"<div>{escape(self.describe())}</div>"
        return f"{run}{now}{described}{html_table('', (), held_out)}{agents_html(self._agents)}"


class CellOutput:
    """A piece of HTML in the output of a cell, which later ones replace."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, html: str) -> None:
        notebook = import_module("IPython.display")
        shown = notebook.HTML(html)
        if self._handle is None:
            self._handle = notebook.display(shown, display_id=True)
        else:
            self._handle.update(shown)


class CellVerdictBar:
    """A bar of verdicts, or of plays that are judged, in the output of a cell."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._output = CellOutput()
        self._total = self._done = 0
        self._shown = 0.0

    def start(self, verdicts: int) -> None:
        self._total = verdicts
        self._update()

    def advance(self, verdict: Verdict) -> None:
        self._done += 1
        if self._done == self._total or time.perf_counter() - self._shown >= REFRESH_SECONDS:
            self._update()

    def _update(self) -> None:
        self._shown = time.perf_counter()
        self._output.show(bar_html(self._what, self._done, self._total))


@contextmanager
def open_verdict_bar(progress: bool, what: str = "verdicts") -> Iterator[VerdictBar | CellVerdictBar]:
    """A bar of verdicts, or of `what` else, that fits the output; nothing where that is no terminal, or `progress` is
    false."""
    if progress and in_notebook():
        yield CellVerdictBar(what)
    else:
        with verdict_bar(Console(stderr=True), quiet=not progress) as bar:
            yield bar


def bar_html(what: str, done: int, total: int) -> str:
    """A bar that is filled as far as `done` of `total`."""
    return f'<div><progress value="{done}" max="{max(total, 1)}"></progress> {done}/{total} {escape(what)}</div>'


def in_notebook() -> bool:
    """Whether this is the kernel of a notebook, whose cells can show HTML; not so IPython on a terminal."""
    shell = sys.modules.get("IPython")
    return shell is not None and hasattr(shell.get_ipython(), "kernel")


@contextmanager
def open_progress(progress: bool | Listener, iterations: int) -> Iterator[Listener]:
    """The listener of a training of so many iterations: one's own, or one that fits the output. False: a quiet one,
    which says only who is sent data."""
    if isinstance(progress, Listener):
        yield progress
    elif progress and in_notebook():
        # Libraries of models ask for widgets, which nothing here needs.
        warnings.filterwarnings("ignore", message="IProgress not found")
        yield CellProgress(iterations)
    else:
        with open_listener(Console(stderr=True), iterations, quiet=not progress) as listener:
            yield listener
