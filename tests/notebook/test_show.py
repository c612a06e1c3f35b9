"""What a notebook shows of runs, results, comparisons and a training that goes on."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest

import mappa
from mappa import runs
from mappa.cli import main
from mappa.notebook.progress import CellProgress
from mappa.statistics import Interval
from mappa.store.agent_columns import AgentSummary
from mappa.store.summary import CoachSummary, EvalSummary, FigureSummary, StratumSummary, Summary
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
    coach=CoachSummary(verdicts=1),
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
    assert {one.tag for one in tables.iter()} <= TAGS
    return [["".join(cell.itertext()) for cell in row] for row in tables.iter("tr")]


def test_texts_of_strangers_are_escaped_and_keys_masked(html_table):
    keep_secret("ACME_KEY", "acme-0123456789")
    html = html_table(HOSTILE, ("a", HOSTILE), [(HOSTILE, "acme-0123456789")])
    assert "<script" not in html and "acme-0123456789" not in html and "\x1b" not in html
    assert rows(html) == [["a", SHOWN_HOSTILE], [SHOWN_HOSTILE, "[ACME_KEY]"]]
    assert html_table(HOSTILE, ("a",), []) == ""


def test_a_result_shows_its_folder_gains_and_agents(demo):
    html = mappa.TrainedRun(demo, SUMMARY)._repr_html_()
    assert "<script" not in html
    found = rows(html)
    assert found[0] == ["run", str(demo)]
    assert ["correct, all", "-", "75.0 % [50.0, 87.5]", "-"] in found
    assert ["fair, all", "50.0 %", "-", "-"] in found
    assert [f"correct, {SHOWN_HOSTILE}", "-", "-", "+75.0 % [+50.0, +87.5]"] in found
    assert [SHOWN_HOSTILE, "8.50", "-", "-", "-"] in found
    assert "\x1b" not in repr(mappa.TrainedRun(demo, SUMMARY))


def test_a_run_shows_its_rollouts_also_before_it_has_a_summary(demo, tmp_path):
    folder = demo.rename(tmp_path / "<b>")
    with runs.open(folder) as run:
        counts = [[split, str(run.counts(split)["done"]), "0", "0"] for split in ("train", "eval")]
        found = rows(run._repr_html_())
        assert found == [["", "done", "failed", "open"], *counts]
        state = "mathchat/tiny, seed 0, done after 8 iterations"
        assert state in run._repr_html_() and f"{state}; rollouts: {counts[0][1]} train, {counts[1][1]} eval" in repr(
            run
        )
        (folder / "summary.json").unlink()
        assert rows(run._repr_html_()) == found and "no summary yet" in repr(run)


def test_a_table_shows_its_beginning(demo):
    with runs.open(demo) as run:
        found = rows(run.steps._repr_html_())
        assert found[0][:3] == ["split", "iteration", "trajectory"] and len(found) == 11
        assert "the first 10 rows" in run.steps._repr_html_()
        assert repr(run.steps) == "Table of StepRow: iterate over it, or call to_pandas()"
        nothing = run.steps.where(iteration=10**6)
        assert (nothing._repr_html_(), repr(nothing)) == ("<div>no rows</div>", "Table without rows")


def test_logs_are_observed_by_names_and_by_functions_and_nothing_twice(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def log(*texts):
        lines = [[{"role": "user", "content": "?"}, {"role": "assistant", "content": text}] for text in texts]
        (tmp_path / "log.jsonl").write_text("".join(json.dumps({"messages": line}) + "\n" for line in lines))

    log("3 * 4 = 13.")
    observed = mappa.observe("log.jsonl", progress=False)
    (agent,) = observed.sums.agents
    assert (agent.agent, agent.blamed, observed.verdicts.plays) == ("assistant", 1, 1)
    assert "assistant" in repr(observed) and "3 * 4 = 13" in repr(observed)
    found = rows(observed._repr_html_())
    assert ["assistant", "1", f"{agent.score:.1f}", "1 of 1", "1 of 1"] in found
    assert ["1", "-", "0 of 1"] in found, "no outcome is known"
    log("3 * 4 = 13.", "3 * 4 = 12.")
    again = mappa.observe("log.jsonl", progress=False)
    assert (again.folder, again.imported.trajectories, again.verdicts.plays) == (observed.folder, 1, 1)

    def points(scene):
        return 7

    assert mappa.observe("log.jsonl", coach=points, progress=False).verdicts.plays == 2
    assert mappa.observe("log.jsonl", coach=points, progress=False).verdicts.plays == 0

    def points(scene):
        return 8

    assert mappa.observe("log.jsonl", coach=points, progress=False).verdicts.plays == 2
    found = mappa.TrainedRun.read(observed.folder)
    assert rows(found._repr_html_())[2][0] == "core/imported" and "assistant" in repr(found.diagnosis)
    assert rows(found.diagnosis._repr_html_())
    with pytest.raises(ConfigError, match=r"is a run and no log: mappa\.TrainedRun\.read"):
        mappa.observe(observed.folder)
    with pytest.raises(ConfigError, match="name the logs"):
        mappa.observe()


def test_a_run_that_was_judged_afterwards_shows_these_verdicts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "3 * 4 = 13."}]
    (tmp_path / "log.jsonl").write_text(json.dumps({"messages": said}))
    assert main(["import", "log.jsonl", "--name", "mine"]) == 0
    judged = mappa.judge("runs/mine", coach="evidence", progress=False)
    assert judged.counts.verdicts == 1 and ["evidence", "1", "1", "0", "0", "1 of 1"] in rows(judged._repr_html_())
    found = rows(mappa.TrainedRun.read("runs/mine")._repr_html_())
    assert ["core/imported", "0", "done", "0", "1"] in found
    (score,) = (row[1] for row in found if row[0] == "assistant" and len(row) > 2)
    assert float(score) <= 10


def test_a_comparison_shows_arms_and_what_follows(compare_module):
    arms = tuple(
        compare_module.Arm(name=name, runs=(name,), seeds=(0,), mean=AFTER, lost=lost)
        for name, lost in ((HOSTILE, 0), ("b", 3))
    )
    pair = compare_module.PairComparison(
        one=HOSTILE, other="b", problems=8, difference=AFTER, p=0.01, p_adjusted=0.02, h=1.0, wins=6, losses=0, ties=2,
        over_seeds=False, level=0.05,
    )  # fmt: skip
    compared = compare_module.Comparison(
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
    found = rows(compared._repr_html_())
    assert [SHOWN_HOSTILE, "0", "75.0 % [50.0, 87.5]"] in found
    assert ["b", "0", "75.0 % [50.0, 87.5] (3 problems lost)"] in found
    assert "Where an arm has one seed, figures hold for other problems" in compared._repr_html_()
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
    monkeypatch.setattr("mappa.notebook.progress.REFRESH_SECONDS", 0.0)
    progress = CellProgress(3)
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
    assert 'value="4" max="4"' in handle.states[-1] and 'value="2" max="3"' in handle.states[-1]
    assert rows(handle.states[-1]) == []
    progress.on_phase_start("evaluate", 3)
    progress.on_rollouts_start("eval", 3, 8)
    assert "evaluating, after iteration 3: 0/8 rollouts, 0 actions, 0:0" in handle.states[-1]


def test_a_comparison_of_no_run_is_refused():
    with pytest.raises(ConfigError, match="name the runs, and how they are grouped"):
        mappa.compare()
