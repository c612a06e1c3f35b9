"""What a notebook shows of runs, results, comparisons and a training that goes on."""

from __future__ import annotations

import json
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

from mappa import runs
from mappa.cli import main
from mappa.look.compare import Arm, Comparison, PairComparison
from mappa.look.demo import unpack_demo
from mappa.look.notebook import (
    SHOWN,
    Progress,
    compare_runs,
    comparison_html,
    html_table,
    load_ipython_extension,
    result_html,
    run_html,
    summary_html,
)
from mappa.statistics import Interval
from mappa.store.agent_columns import AgentSummary
from mappa.store.summary import EvalSummary, FigureSummary, StratumSummary, Summary
from mappa_core import ConfigError, Task, Trajectory
from mappa_core.redaction import keep_secret

HOSTILE = "<script>alert('1')</script>\x1b[2J"
TAGS = {"div", "progress", "table", "caption", "thead", "tbody", "tr", "th", "td"}
SHOWN_HOSTILE = "<script>alert('1')</script>\\u001b[2J"
AFTER = Interval(mean=0.75, low=0.5, high=0.875)
SUMMARY = Summary(
    plugin="mathchat",
    recipe=HOSTILE,
    recipe_hash="ab",
    seed=3,
    status="done",
    eval=EvalSummary(
        metric="correct",
        n=8,
        clusters=4,
        after=AFTER,
        figures={"fair": FigureSummary(before=Interval(mean=0.5))},
        strata={HOSTILE: StratumSummary(n=4, gain=AFTER, figures={"fair": FigureSummary()})},
    ),
    agents={HOSTILE: AgentSummary(score=8.5)},
)


def rows(html: str) -> list[list[str]]:
    """The texts of every row of all tables. Fails for what is not well-formed, and for tags beside those of tables."""
    tables = ElementTree.fromstring(f"<div>{html}</div>")
    assert {one.tag for one in tables.iter()} <= {
        "div",
        "progress",
        "table",
        "caption",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
    }
    return [["".join(cell.itertext()) for cell in row] for row in tables.iter("tr")]


def test_texts_of_strangers_are_escaped_and_keys_masked():
    keep_secret("ACME_KEY", "acme-0123456789")
    html = html_table(HOSTILE, ("a", HOSTILE), [(HOSTILE, "acme-0123456789")])
    assert "<script" not in html and "acme-0123456789" not in html and "\x1b" not in html
    assert rows(html) == [["a", SHOWN_HOSTILE], [SHOWN_HOSTILE, "[ACME_KEY]"]]
    assert html_table(HOSTILE, ("a",), []) == ""


def test_a_result_shows_its_folder_gains_and_agents(tmp_path):
    html = result_html(SimpleNamespace(folder=tmp_path, summary=SUMMARY, evaluations=()))
    assert html.endswith(summary_html(SUMMARY)) and "<script" not in html
    found = rows(html)
    assert found[0] == ["run", str(tmp_path)]
    assert ["correct, all", "-", "75.0 % [50.0, 87.5]", "-"] in found
    assert ["fair, all", "50.0 %", "-", "-"] in found
    assert [f"correct, {SHOWN_HOSTILE}", "-", "-", "+75.0 % [+50.0, +87.5]"] in found
    assert [SHOWN_HOSTILE, "8.50", "-", "-", "-"] in found


def test_a_run_shows_its_rollouts_also_before_it_has_a_summary(tmp_path):
    folder = unpack_demo(tmp_path).rename(tmp_path / "<b>")
    with runs.open(folder) as run:
        counts = [[split, str(run.counts(split)["done"]), "0", "0"] for split in ("train", "eval")]
        found = rows(run_html(run))
        assert found[:3] == [["", "done", "failed", "open"], *counts]
        assert ["mathchat/tiny", "0", "done", "8"] in [row[:4] for row in found]
        (folder / "summary.json").unlink()
        assert rows(run_html(run)) == found[:3]


def test_a_run_that_was_judged_afterwards_shows_these_verdicts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "3 * 4 = 13."}]
    (tmp_path / "log.jsonl").write_text(json.dumps({"messages": said}))
    assert main(["import", "log.jsonl", "--name", "mine"]) == 0
    assert main(["judge", "runs/mine", "--coach", "evidence", "--quiet"]) == 0
    with runs.open(tmp_path / "runs" / "mine") as run:
        found = rows(run_html(run))
    assert ["core/imported", "0", "done", "0", "1"] in found
    (score,) = (row[1] for row in found if row[0] == "assistant")
    assert float(score) <= 10


def test_a_comparison_shows_arms_and_what_follows():
    arms = tuple(Arm(name=name, runs=(name,), seeds=(0,), mean=AFTER, lost=0) for name in (HOSTILE, "b"))
    pair = PairComparison(
        one=HOSTILE, other="b", problems=8, difference=AFTER, p=0.01, p_adjusted=0.02, h=1.0, wins=6, losses=0, ties=2,
        over_seeds=False, level=0.05,
    )  # fmt: skip
    compared = Comparison(
        measure="correct",
        problems=8,
        clusters=None,
        samples=1,
        arms=arms,
        pairs=(pair,),
        level=0.05,
        pooled={},
        also_differ={},
    )
    found = rows(comparison_html(compared))
    assert [SHOWN_HOSTILE, "0", "75.0 % [50.0, 87.5]"] in found
    assert found[-1] == [f"{SHOWN_HOSTILE} - b", "+75.0 % [+50.0, +87.5]", "0.0200", "cannot be told"]


class Handle:
    """The output of a cell: every state in which it was shown."""

    def __init__(self) -> None:
        self.states: list[str] = []

    def show(self, html, *, display_id):
        assert display_id and not self.states, "shown once, and updated from then on"
        return self.update(html)

    def update(self, html):
        self.states.append(html.data)
        return self


@pytest.fixture
def handle(monkeypatch):
    display = pytest.importorskip("IPython.display")
    handle = Handle()
    monkeypatch.setattr(display, "display", handle.show)
    return handle


def test_progress_moves_with_every_action_before_a_rollout_has_ended(handle, monkeypatch):
    monkeypatch.setattr("mappa.look.notebook.REFRESH_SECONDS", 0.0)
    progress = Progress()
    assert "starting, 0:0" in handle.states[-1]
    progress.on_phase_start("collect", 2)
    progress.on_rollouts_start("train", 2, 4)
    progress.on_step(None)
    progress.on_step(None)
    progress.on_verdict(None)
    assert "collecting, iteration 3: 0/4 rollouts, 2 actions, 1 verdict, 0:0" in handle.states[-1]
    for number in range(4):
        task = Task(id="t", prompt="p")
        progress.on_rollout_end(Trajectory(id=str(number), task=task, sample=0, iteration=2, steps=(), verdicts=()))
    progress.on_phase_start("update", 2)
    assert "learning, iteration 3: 4/4 rollouts" in handle.states[-1]
    assert 'value="4" max="4"' in handle.states[-1] and rows(handle.states[-1]) == []
    progress.on_phase_start("evaluate", 3)
    progress.on_rollouts_start("eval", 3, 8)
    assert "evaluating, after iteration 3: 0/8 rollouts, 0 actions, 0:0" in handle.states[-1]


def test_extension_displays_the_types_it_lists():
    shell = pytest.importorskip("IPython.core.interactiveshell").InteractiveShell()
    load_ipython_extension(shell)
    assert shell.display_formatter.formatters["text/html"](SUMMARY) == summary_html(SUMMARY)
    assert {*SHOWN} <= {*shell.display_formatter.formatters["text/html"].type_printers}


def test_a_comparison_of_no_run_is_refused():
    with pytest.raises(ConfigError, match="name the runs that are compared"):
        compare_runs()
