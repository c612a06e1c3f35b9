"""The page of a report: one file on its own, with what tells most, all settings, and, for an audit, every verdict."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from mappa.cli import main
from mappa.look.view.highlights import select_highlights
from mappa.look.view.provenance import read_provenance
from mappa.look.view.report import write_page, write_report
from mappa.runs import RunFolder, RunReader
from mappa.store.iteration_report import CoachFigures, IterationReport, VerdictCount
from mappa.store.summary import Summary, write_summary
from mappa_core import Completion, Failure, Message, Step, Task, Trajectory, Usage, Verdict

HOSTILE = "<script>alert('x')</script> <img src=http://evil.example/x.png> {{ 7 * 7 }}"
CONFIG = "recipe: mathchat/tiny\nseed: 0  # <- the recipe\n"
BLANK = Summary(plugin="p", recipe="tiny", recipe_hash="h", seed=0, status="done")
SUMMARY = replace(BLANK, coach=replace(BLANK.coach, usd=1.25))


def step(trajectory, position, text="wrote"):
    done = Completion(
        text=text,
        prompt_tokens=np.arange(2, dtype=np.int32),
        tokens=np.arange(2, dtype=np.int32),
        logprobs=np.zeros(2, dtype=np.float32),
        finish="stop",
    )
    return Step(
        id=f"{trajectory}/{position:03d}",
        agent="solver",
        turn=position,
        position=position,
        policy="solver",
        messages=(Message(role="user", content="?"),),
        reply=Message(role="assistant", content=text),
        completion=done,
    )


def played(store, name, scores, correct, *, text="wrote", members=(), error=None, reasoning="because"):
    """A trajectory with an action for each score."""
    task = Task(id=name, prompt=f"task {name}", reference="42")
    identity = f"train-000000/{name}/000"
    store.begin_trajectory("train", identity, task, 0, 0)
    steps = tuple(step(identity, position, text) for position in range(len(scores)))
    for one, score in zip(steps, scores, strict=True):
        store.record_step(identity, one)
        given = Verdict(
            status="scored",
            score=score,
            reasoning=reasoning,
            step=one.id,
            coach="judge",
            id=f"{one.id}/judge/live/0",
            question=f"{name}{one.position}".ljust(32, "0"),
            template_hash="tem",
            model="m-1",
            seed=5,
            usage=Usage(calls=1, usd=0.5),
            members=tuple(Verdict.scored(points, "") for points in members),
        )
        store.record_verdict(given)
    outcome = {} if correct is None else {"correct": correct}
    store.end_trajectory(
        Trajectory(id=identity, task=task, sample=0, iteration=0, steps=steps, outcome=outcome, error=error)
    )
    return identity


@pytest.fixture
def run(tmp_path):
    """Makes a run of the trajectories that a function plays."""

    def make(play, name="first"):
        with RunFolder.create(tmp_path, name, plugin="p", recipe="tiny", config=CONFIG) as folder:
            names = play(folder.store)
        write_summary(folder.path, SUMMARY)
        return folder.path, names

    return make


def several(store):
    return {
        "praised": played(store, "praised", [9.0, 8.0], 0.0),
        "worse": played(store, "worse", [8.0, 8.5], 0.0),
        "blamed": played(store, "blamed", [4.0, 3.0], 1.0),
        "lowest": played(store, "lowest", [0.0, 9.5], 1.0),
        "odds": played(store, "odds", [5.0], 1.0, members=(1.0, 9.0)),
        "broken": played(store, "broken", [5.0], None, error=Failure(kind="ToolError", message="gone")),
        "best": played(store, "best", [10.0, 10.0], 1.0),
    }


def test_highlights_are_the_five_trajectories_that_the_rules_name(run):
    folder, names = run(several)
    with RunReader(folder) as reader:
        found = [
            (one.why.split(":")[0].split(",")[0], one.trajectory.id) for one in select_highlights(reader, "correct")
        ]
    assert found == [
        ("praised", names["praised"]),
        ("blamed", names["blamed"]),
        ("members at odds", names["odds"]),
        ("the action with the lowest score", names["lowest"]),
        ("broken off", names["broken"]),
    ]


def test_highlights_of_a_short_run_are_fewer_and_distinct(run):
    folder, names = run(lambda store: [played(store, "only", [3.0], 0.0)])
    with RunReader(folder) as reader:
        assert [one.trajectory.id for one in select_highlights(reader, "correct")] == names
    folder, _ = run(lambda store: None, "empty")
    with RunReader(folder) as reader:
        assert select_highlights(reader, "correct") == ()
    assert "telling" not in write_report(folder, SUMMARY).read_text()


def test_the_scores_are_those_of_the_run_s_own_coach_and_others_where_it_had_none(run):
    def play(store):
        name, other = played(store, "one", [9.0], 0.0), played(store, "two", [5.0], 0.0)
        for phase, score in (("again", 1.0), ("after", 2.0)):
            store.record_verdict(
                Verdict(status="scored", score=score, step=f"{name}/000", coach="j", id=phase, phase=phase)
            )
        task = Task(id="three", prompt="three")
        store.begin_trajectory("train", "imported", task, 0, 0)
        store.record_step("imported", step("imported", 0))
        only = Verdict(status="scored", score=10.0, step="imported/000", coach="j", id="again", phase="again")
        store.record_verdict(only)
        store.end_trajectory(Trajectory(id="imported", task=task, sample=0, iteration=0, outcome={"correct": 0.0}))
        return name, other

    folder, (name, other) = run(play)
    with RunReader(folder) as reader:
        found = [one.trajectory.id for one in select_highlights(reader, "correct")]
    # Praised and failed: 10 points; the lowest action: 5; failed with the lowest mean: 9 of those that are left.
    assert found == ["imported", other, name]


class Loads(HTMLParser):
    """What a browser would fetch, run, or leave open."""

    def __init__(self):
        super().__init__()
        self.found, self.open = [], []

    def handle_starttag(self, tag, attrs):
        known = dict(attrs)
        target = known.get("src") or (known.get("href") if tag != "a" else None)
        if (
            target is not None
            or tag in ("script", "img", "link", "iframe", "object")
            or any(k[:2] == "on" for k in known)
        ):
            self.found.append((tag, attrs))
        if tag not in ("meta", "br", "hr", "line", "circle", "path"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_loads_nothing_and_shows_hostile_text_as_text(run):
    folder, _ = run(lambda store: played(store, HOSTILE, [2.0], 0.0, text=HOSTILE, reasoning=HOSTILE))
    page = write_report(folder, SUMMARY, audit=True).read_text()
    reading = Loads()
    reading.feed(page)
    assert reading.found == [] and reading.open == []
    assert page.count("&lt;script&gt;alert(") >= 4 and "{{ 7 * 7 }}" in page
    assert "default-src 'none'" in page


def test_an_audit_has_every_verdict_with_its_evidence_hash(run):
    folder, _ = run(several)
    plain = write_report(folder, SUMMARY).read_text()
    assert "evidence hash" not in plain
    page = write_report(folder, SUMMARY, audit=True).read_text()
    with RunReader(folder) as reader:
        verdicts = [verdict.verdict for verdict in reader.verdicts]
    assert len(verdicts) == 12 and "12 verdicts" in page
    body = page.split("Every verdict")[1]
    assert all(body.count(verdict.question) == 1 for verdict in verdicts)
    assert body.count("0.500000 USD") == 12


def test_several_runs_stand_on_one_page(run, tmp_path, capsys):
    folders = [run(several)[0], run(lambda store: played(store, "x", [1.0], 0.0), "second")[0]]
    out = tmp_path / "page.html"
    assert main(["report", *map(str, folders), "--out", str(out)]) == 0
    page = out.read_text()
    assert "2 runs" in page and page.count("<h1>") == 3
    assert re.findall(r'href="#(run-\d)"', page) == re.findall(r'id="(run-\d)"', page) == ["run-1", "run-2"]
    assert "first  done" in capsys.readouterr().out and not (folders[0] / "report.html").exists()
    assert main(["report", str(folders[0]), "--out", str(tmp_path / "no" / "page.html")]) == 2


def test_settings_versions_and_what_the_coaches_cost_are_told(run):
    def play(store):
        store.record_event("versions", packages={"mappa-core": "0.1.0", "python": "3.11.9"})
        for number, usd in ((1, 0.25), (2, 0.5)):
            count = VerdictCount(scored=4, usage=Usage(calls=4, prompt_tokens=None if number == 1 else 9, usd=usd))
            store.record_iteration(IterationReport(iteration=number, coach=CoachFigures(by_coach={"judge": count})))
        store.record_iteration(IterationReport(iteration=3))

    folder, _ = run(play)
    with RunReader(folder) as reader:
        record = read_provenance(reader, list(reader.iterations))
    (spent,) = record.costs
    assert (spent.verdicts, spent.usd, spent.calls, spent.prompt_tokens) == (8, 0.75, 8, None)
    page = write_report(folder, SUMMARY).read_text()
    assert "mappa-core 0.1.0" in page and "seed: 0  # &lt;- the recipe" in page and "0.7500" in page


def test_a_long_text_is_cut_and_says_so(run):
    folder, _ = run(lambda store: played(store, "long", [2.0], 0.0, text="a" * 5000))
    page = write_page(folder / "x.html", [(folder, replace(SUMMARY, status="running"))]).read_text()
    assert "characters cut" in page and "a" * 1500 not in page
