"""What the report shows: that a coach prefers one kind of task, what was learned by stratum."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from random import Random

import pytest
from rich.console import Console
from starlette.testclient import TestClient

from mappa.cli import main
from mappa.commands import show_evaluation
from mappa.look.view.drift import read_drift
from mappa.look.view.report import build_gap_charts, write_report
from mappa.look.view.web.app import create_app
from mappa.look.view.web.run_folders import RunFolders
from mappa.runs import RunReader
from mappa.sessions import Run
from mappa.statistics import Interval
from mappa.testing import ScriptedEngine, load_plugins
from mappa_core import Coach, Message, Offer, Role, Task, TaskSource, Verdict, Workflow, hookimpl
from mappa_core.coach import Alarm, DriftReport, Gap

FAVOUR = 1.2
RECIPE = """
tasks: {use: kinds}
workflow: {use: guesses}
policies: {default: {model: none}}
sampling: {max_tokens: 8}
coach: {use: partial}
estimator: {use: reinforce}
engine: {use: scripted}
train: {iterations: 16, prompts: 12, samples: 1, stratified: true}
"""


class Kinds(TaskSource):
    """Tables to predict, of which every third is of classes."""

    def __init__(self, options) -> None:
        pass

    def load(self, split):
        count = 48 if split == "train" else 9
        return [
            Task(
                id=f"{split}{n}",
                prompt=f"{split} {n}",
                stratum="classification" if n % 3 == 0 else "regression",
                cluster=f"set{n % 4}",
            )
            for n in range(count)
        ]


class Guesses(Workflow):
    figures = ("fair",)
    agents = {"modeler": Role(brief="fits"), "analyst": Role(brief="predicts")}  # noqa: RUF012

    def __init__(self, options) -> None:
        pass

    async def run(self, stage):
        await stage.act("modeler", [Message(role="user", content=f"fit {stage.task.prompt}")])
        await stage.act("analyst", [Message(role="user", content=f"predict {stage.task.prompt}")])
        right = Random(stage.task.id).random() < 0.5
        stage.record(correct=float(right), fair=0.5 * right)


class Partial(Coach):
    """Reports of itself that it likes the modeler's regressions, and the analyst's ever better."""

    def __init__(self, options) -> None:
        self._learned = 0

    async def score(self, scene):
        return Verdict.scored(4 + Random(f"{scene.step.id}").uniform(-1, 1), "felt")

    def learn(self, trajectories):
        self._learned += 1
        grown = -0.1 * self._learned
        gaps = self._gap("modeler", -FAVOUR, 0.0), self._gap("analyst", grown, -0.2)
        raised = {4: [("level", gaps[0])], 9: [("level", gaps[1]), ("widening", gaps[1])]}.get(self._learned, [])
        notes = ("nothing tells <taste> from merit",) if self._learned in (3, 6) else ()
        return DriftReport(gaps=gaps, alarms=tuple(Alarm(kind=kind, gap=gap) for kind, gap in raised), notes=notes)

    def _gap(self, agent, points, growth):
        return Gap(
            phase="live",
            agent=agent,
            stratifier="task",
            stratum="classification",
            against="regression",
            actions=(10, 10),
            points=Interval(mean=points, low=points - 0.2, high=points + 0.2),
            growth=Interval(mean=growth, low=growth - 0.1, high=growth + 0.1),
            now=2 * points,
        )


class Partiality:
    def __init__(self, recipe) -> None:
        self.recipe = recipe

    @hookimpl
    def mappa_tasks(self):
        yield Offer("kinds", Kinds)

    @hookimpl
    def mappa_workflows(self):
        yield Offer("guesses", Guesses)

    @hookimpl
    def mappa_coaches(self):
        yield Offer("partial", Partial)

    @hookimpl
    def mappa_engines(self):
        yield Offer("scripted", lambda options: ScriptedEngine(lambda prompt, sampling: "ok"))

    @hookimpl
    def mappa_recipes(self):
        return {"tiny": self.recipe}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    recipe = tmp_path_factory.mktemp("partial") / "tiny.yaml"
    recipe.write_text(RECIPE)
    registry = load_plugins(only=("engine", "sandbox"), modules={"partial": Partiality(recipe)})
    root = tmp_path_factory.mktemp("runs")
    return Run.from_recipe("partial/tiny", f"run.root={root}", "run.name=favours", registry=registry).train()


@pytest.fixture(scope="module")
def watch(trained):
    with RunReader(trained.folder) as reader:
        return read_drift(reader)


def test_a_coach_that_favours_a_stratum_is_seen_with_interval_and_alarm(watch):
    gaps = {gap.agent: gap for gap in watch.gaps}
    modeler = gaps["modeler"]
    assert (modeler.stratifier, modeler.stratum, modeler.phase) == ("task", "classification", "live")
    assert modeler.last.low < -FAVOUR < modeler.last.high
    assert modeler.last.high - modeler.last.low < 0.6
    assert len(modeler.points) == 16
    assert [kind for _, kind in modeler.alarms] == ["level"]
    assert {kind for _, kind in gaps["analyst"].alarms} == {"level", "widening"}
    assert gaps["analyst"].growth == pytest.approx(-0.2, abs=0.06)


def test_the_command_prints_gaps_and_alarms_and_where_the_page_lies(trained, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    (trained.folder / "report.html").unlink(missing_ok=True)
    assert main(["report", str(trained.folder)]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"\n modeler +task: classification +-1\.\d\d \[-1\.\d\d, -\d\.\d\d\] .* level", shown)
    assert re.search(
        r"level alarm after iteration \d+: the coach gives modeler -1\.\d\d points where task is class", shown
    )
    assert "widening alarm after iteration" in shown
    assert f"report   {trained.folder / 'report.html'}" in shown
    assert (trained.folder / "report.html").is_file()


def test_the_page_shows_the_gap_its_band_its_alarms_and_every_measure(trained, watch):
    page = write_report(trained.folder, trained.summary).read_text()
    plain = re.sub(r"<[^>]+>", " ", page)
    assert re.search(r"modeler\s+task: classification \(live\)\s+-1\.\d\d\s+\[-1\.\d\d, -\d\.\d\d\]", plain)
    assert re.search(r"level\s+after iteration \d+: the coach gives modeler", plain)
    assert "task: points for classification against the rest, beyond merit (live verdicts)" in page
    assert page.count('class="band') == 2
    assert "Held-out correct, 9 problems in 4 clusters" in page and "Held-out fair, 9 problems" in page
    assert "Further figures of training rollouts" in page and "<td>regression</td>" in page
    (drawn,) = build_gap_charts(watch)
    assert [line.name for line in drawn.lines] == ["modeler", "analyst"]
    assert len(drawn.error_bars) == len(watch.alarms)


def test_a_note_of_the_coach_is_on_the_page_and_printed_once_with_its_first_iteration(trained, watch, capsys):
    (note,) = watch.notes
    assert (note.iteration, note.text) == (3, "nothing tells <taste> from merit")
    page = write_report(trained.folder, trained.summary).read_text()
    assert page.count("After iteration 3: nothing tells &lt;taste&gt; from merit") == 1
    assert main(["report", str(trained.folder)]) == 0
    assert capsys.readouterr().out.count("coach, after iteration 3: nothing tells <taste> from merit") == 1


def test_a_note_of_the_coach_is_on_its_page_in_the_viewer(trained):
    app = create_app(RunFolders([trained.folder.parent]), token="t")
    client = TestClient(app, base_url="http://127.0.0.1:1")
    page = client.get(f"/runs/{trained.folder.name}/coach?token=t")
    assert page.text.count("After iteration 3: nothing tells &lt;taste&gt; from merit") == 1


def test_the_report_as_json_holds_gaps_and_alarms(trained, capsys):
    assert main(["report", "--json", str(trained.folder), str(trained.folder)]) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first == second
    assert first["gaps"][0]["points"][-1][1]["low"] < -1 and first["alarms"][0]["kind"] in ("level", "widening")
    assert first["eval"]["figures"]["fair"]["before"]["mean"] == first["eval"]["before"]["mean"] / 2


def test_a_run_that_is_under_way_or_recorded_no_bounds_has_a_report_too(trained, tmp_path):
    summary = replace(trained.summary, status="running", eval=None)
    summary = replace(summary, seconds=replace(summary.seconds, wall=None))
    page = write_report(trained.folder, summary).read_text()
    assert "16 iterations,\nrunning</p>" in page and "Held-out" not in page


def test_folder_that_is_no_run_is_refused(tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 2
    assert "is not a run folder" in " ".join(capsys.readouterr().err.split())


# --- what a run says of its measures --------------------------------------------------------------------------------


def test_iterations_keep_accuracy_and_figures_by_stratum(trained):
    with RunReader(trained.folder) as reader:
        reports = list(reader.iterations)
    for report in reports:
        total, regression = report.outcomes, report.strata["regression"]
        mean = report.strata["classification"].accuracy * 4 + regression.accuracy * 8
        assert total.accuracy == pytest.approx(mean / 12)
        assert total.figures["fair"] == total.accuracy / 2
        assert regression.figures["fair"] == regression.accuracy / 2


def test_a_run_ends_with_every_measure_by_stratum(trained, capsys, show_result):
    show_result(Console(width=100), trained)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "held-out correct, 9 problems in 4 clusters, 95 % intervals"
    start = lines.index("fair")
    assert lines[1:3] == ["correct", "before after gain"]
    assert [line.split()[0] for line in lines[start + 2 : start + 5]] == ["all", "classification", "regression"]
    # What these agents do never changes, which four clusters do not prove of others.
    assert lines[start + 2].endswith("+0.0 % [-40.0, +40.0]")


def test_an_evaluation_is_told_with_every_measure_and_by_stratum(trained, capsys, printed_mean):
    before = trained.evaluations[0]
    show_evaluation(Console(width=100), before)
    line, header, *rows = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    correct, fair = printed_mean(before), printed_mean(before.with_metric("fair"))
    told = f"correct {correct}, fair {fair} over 9 problems in 4 clusters"
    assert line == f"held-out after 0 iterations: {told}"
    assert header == "tasks correct fair" and rows[0] == f"all 9 {correct} {fair}"
    assert [row.split()[:2] for row in rows] == [["all", "9"], ["classification", "3"], ["regression", "6"]]
