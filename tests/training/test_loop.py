"""The loop over a scripted engine: what is learned from, kept, resumed and refused."""

import json
import re
import sqlite3
from dataclasses import replace

import numpy as np
import pytest

from mappa.cli import main
from mappa.runs import RunReader
from mappa.store.iteration_report import CoachFigures, VerdictCount
from mappa.store.summary import write_summary
from mappa.training import Run
from mappa.training.guards import guard_verdicts
from mappa_core import Advantages, ConfigError, GuardStop, Message, PluginError, RunError, TaskError, Verdict


def start(registry, tmp_path, *settings, name="run"):
    words = (f"run.root={tmp_path / 'runs'}", f"run.name={name}", *settings)
    return Run.from_recipe("doubles/tiny", *words, registry=registry)


def test_a_run_leaves_a_summary_that_scripts_can_rely_on(registry, tmp_path):
    trained = start(registry, tmp_path).train()
    summary = json.loads((trained.folder / "summary.json").read_text())
    described = "schema plugin recipe recipe_hash seed status iterations eval agents coach tools"
    assert list(summary) == [*described.split(), "engine_losses", "transport_losses", "seconds"]
    assert [summary[key] for key in ("plugin", "recipe", "status", "iterations")] == ["doubles", "tiny", "done", 4]
    assert summary["coach"] == {"verdicts": 32, "failed": 0, "usd": 0.0}
    assert summary["eval"]["metric"] == "correct" and summary["eval"]["n"] == 4
    assert summary["eval"]["before"]["mean"] == summary["eval"]["after"]["mean"] == 0.0
    assert set(summary["eval"]["strata"]) == {"even", "odd"}
    checker = summary["agents"]["checker"]
    assert list(checker) == ["score", "tool_success", "turns", "length"]
    assert (checker["score"], checker["tool_success"], checker["turns"]) == (5.0, None, 1.0)


def test_peak_memory_is_recorded_after_what_writes_the_last_checkpoint_took(registry, tmp_path):
    with RunReader(start(registry, tmp_path).train().folder) as reader:
        kinds = [event.kind for event in reader.events() if event.kind in {"memory", "checkpoint"}]
    assert kinds.count("memory") == 5
    assert kinds[-2:] == ["checkpoint", "memory"]


def test_a_run_that_was_not_evaluated_before_has_no_gain(registry, tmp_path, capsys):
    trained = start(registry, tmp_path, "eval.before=false", "eval.every=2").train()
    assert [evaluation.iteration for evaluation in trained.evaluations] == [2, 4]
    found = trained.summary.eval
    assert (found.n, found.known, set(found.strata)) == (4, (4,), {"even", "odd"})
    for part in (found, *found.strata.values()):
        assert (part.before, part.gain, part.paired, part.after.mean) == (None, None, None, 0.0)
    assert main(["runs", "list", "--root", str(trained.folder.parent)]) == 0
    assert re.search(r" done +4 +- +0\.0 % \[.*\] +-\s*$", capsys.readouterr().out)
    assert main(["report", str(trained.folder)]) == 0
    assert '<td data-name="before">-</td><td data-name="after">0.0 %' in (trained.folder / "report.html").read_text()


def test_figures_of_an_iteration_are_those_of_its_trajectories(registry, tmp_path):
    trained = start(registry, tmp_path).train()
    with RunReader(trained.folder) as reader:
        report, *_ = reader.iterations
        rows = list(reader.trajectories.where(split="train", iteration=0))
        whole = [reader.trajectory(row.id) for row in rows]
    right = [one.outcome["correct"] for one in whole]
    scores = [v.score for one in whole for v in one.verdicts if one.steps[0].id == v.step]
    assert len(rows) == 4
    assert report.outcomes.accuracy == pytest.approx(sum(right) / 4)
    assert report.agents["doubler"].score == pytest.approx(sum(scores) / 4)
    assert report.tokens == sum(len(step.completion.tokens) for one in whole for step in one.steps)


def test_every_prompt_of_an_epoch_is_used_once(registry, tmp_path):
    trained = start(registry, tmp_path, "train.iterations=5").train()
    with RunReader(trained.folder) as reader:
        used = [row.task for row in reader.trajectories.where(split="train") if row.sample == 0]
    assert sorted(used) == sorted(f"n{n}" for n in range(2, 12))


def test_a_killed_run_goes_on_from_its_checkpoint_and_pays_no_verdict_twice(registry, tmp_path, kept, manifest_of):
    whole = start(registry, tmp_path, name="whole").train()

    class Killed(BaseException):
        pass

    class Killer:
        def __getattr__(self, name):
            return lambda *args: None

        def on_iteration_end(self, report):
            if report.iteration == 3:
                raise Killed

    run = start(registry, tmp_path, name="killed")
    with pytest.raises(Killed):
        run.train(Killer())
    folder = tmp_path / "runs" / "killed"
    assert kept(folder) == (2,)
    with RunReader(folder) as reader:
        paid = sum(row.verdict.score is not None for row in reader.verdicts)
    assert paid == 24
    resumed = Run.resume(folder, registry=registry).train()
    assert resumed.summary.status == "done"
    assert traces(folder) == traces(whole.folder)
    states = manifest_of(folder).coach["coaches"]
    assert states == [{"learned": 16}]


def traces(folder):
    """Everything recorded but times."""
    with sqlite3.connect(folder / "run.db") as db:
        steps = db.execute("SELECT id, agent, turn, tokens FROM steps ORDER BY id").fetchall()
        verdicts = db.execute("SELECT id, step, score FROM verdicts ORDER BY id").fetchall()
        ends = db.execute("SELECT id, outcome, error FROM trajectories ORDER BY id").fetchall()
    return steps, verdicts, ends


def test_resume_may_add_iterations_but_not_change_settings_of_past_iterations(registry, tmp_path):
    trained = start(registry, tmp_path).train()
    further = Run.resume(trained.folder, "train.iterations=6", registry=registry).train()
    assert further.summary.iterations == 6
    with pytest.raises(ConfigError, match=r"train.prompts: 2 -> 3"):
        Run.resume(trained.folder, "train.prompts=3", registry=registry)


def test_a_resume_to_fewer_iterations_than_there_are_is_refused(registry, tmp_path):
    trained = start(registry, tmp_path, "train.iterations=2").train()
    before = (trained.folder / "config.yaml").read_text(), (trained.folder / "summary.json").read_text()
    with pytest.raises(ConfigError, match=r"train.iterations=1.* has 2 iterations.*train.iterations=2 or more"):
        Run.resume(trained.folder, "train.iterations=1", registry=registry)
    assert ((trained.folder / "config.yaml").read_text(), (trained.folder / "summary.json").read_text()) == before


def test_missed_evaluation_is_not_made_with_later_weights(registry, tmp_path):
    trained = start(registry, tmp_path, "eval.every=1", "train.iterations=2").train()
    with sqlite3.connect(trained.folder / "run.db") as db:
        db.execute("DELETE FROM events WHERE kind = 'evaluation' AND json_extract(body, '$.iteration') = 1")
        db.execute("DELETE FROM trajectories WHERE split = 'eval' AND iteration = 1")
    again = Run.resume(trained.folder, "train.iterations=3", registry=registry).train()
    assert [evaluation.iteration for evaluation in again.evaluations] == [0, 2, 3]
    with RunReader(trained.folder) as reader:
        assert {trajectory.iteration for trajectory in reader.trajectories.where(split="eval")} == {0, 2, 3}


def test_the_time_of_a_run_is_that_of_all_its_starts(registry, tmp_path):
    trained = start(registry, tmp_path, "train.iterations=1").train()
    seconds = replace(trained.summary.seconds, wall=1000.0, cpu=2000.0)
    write_summary(trained.folder, replace(trained.summary, seconds=seconds))
    again = Run.resume(trained.folder, registry=registry).train().summary.seconds
    assert 1000.0 < again.wall < 1100.0 and 2000.0 < again.cpu < 2100.0


def test_a_run_without_a_summary_is_resumed(registry, tmp_path):
    trained = start(registry, tmp_path, "train.iterations=1").train()
    (trained.folder / "summary.json").unlink()
    assert Run.resume(trained.folder, registry=registry).train().summary.status == "done"


def test_a_folder_that_exists_is_not_overwritten(registry, tmp_path):
    start(registry, tmp_path).train()
    with pytest.raises(RunError, match="--resume"):
        start(registry, tmp_path).train()


def test_too_many_missing_verdicts_stop_the_run_with_a_checkpoint_and_the_reasons(registry, tmp_path, kept):
    run = start(registry, tmp_path, "coach.options.fails_from=8")
    with pytest.raises(GuardStop, match=r"100% .*iteration 2(.|\n)*8 x failed: ConnectionError: the coach is away"):
        run.train()
    folder = tmp_path / "runs" / "run"
    assert kept(folder) == (1,)
    with RunReader(folder) as reader:
        assert reader.summary.status == "stopped"
    with pytest.raises(GuardStop, match="iteration 3"):
        Run.resume(folder, registry=registry).train()
    assert kept(folder) == (1, 2)


def test_guard_names_the_agents_that_were_never_judged():
    judged, silent = VerdictCount(scored=4), VerdictCount(abstained=4)
    figures = CoachFigures(total=VerdictCount(scored=4, abstained=4), by_agent={"coder": judged, "planner": silent})
    with pytest.raises(GuardStop, match=r"50% (.|\n)*No action of planner was judged: coach\.by_agent"):
        guard_verdicts(figures, [Verdict.scored(5, ""), Verdict.abstained("")], "iteration 1", max_missing=0.1)
    with pytest.raises(GuardStop, match=r"^(?!.*by_agent)"):
        all_silent = CoachFigures(total=silent, by_agent={"coder": silent})
        guard_verdicts(all_silent, [Verdict.abstained("")], "iteration 1", max_missing=0.1)


def test_missing_verdicts_are_a_share_of_the_actions_of_each_phase():
    live = [Verdict.scored(5, "")] * 100
    after = [replace(one, phase="after") for one in (*[Verdict.abstained("")] * 18, *[Verdict.scored(5, "")] * 82)]
    with pytest.raises(GuardStop, match=r"18% of the verdicts of iteration 1 \(phase after\) have no score"):
        guard_verdicts(CoachFigures(), [*live, *after], "iteration 1", max_missing=0.1)
    guard_verdicts(CoachFigures(), [*live, *after], "iteration 1", max_missing=0.18)
    guard_verdicts(CoachFigures(), [], "iteration 1", max_missing=0.0)


def test_a_few_missing_verdicts_are_counted_and_carry_no_reward(registry, tmp_path):
    settings = ("coach.options.fails_from=7", "coach.max_missing=0.13", "train.iterations=1")
    trained = start(registry, tmp_path, *settings).train()
    assert (trained.summary.coach.verdicts, trained.summary.coach.failed) == (8, 1)


@pytest.mark.parametrize("setting", ["shapers=[{use: outcome, options: {metric: corect}}]", "coach.reward.live=0"])
def test_an_iteration_without_a_reward_stops_the_run_with_a_checkpoint(registry, tmp_path, kept, setting):
    run = start(registry, tmp_path, setting)
    with pytest.raises(GuardStop, match=r"No action of iteration 1 .*coach\.reward.*shapers.*metrics correct\)"):
        run.train()
    assert kept(tmp_path / "runs" / "run") == (0,)


def test_iteration_with_a_share_of_counterfactuals_may_have_no_reward(registry, tmp_path):
    settings = ("credit.counterfactual={use: resample, share: 1.0e-9}", "shapers=[{use: difference}]")
    assert start(registry, tmp_path, *settings, "train.iterations=1").train().summary.status == "done"


def test_wrong_input_is_refused_before_anything_is_written(registry, tmp_path):
    with pytest.raises(ConfigError, match=r"doublr.*Did you mean doubler"):
        start(registry, tmp_path, "coach.reference_for=[doublr]").train()
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("id", 0, r"the task 0: .*Task.id that cannot be stored: Expected str, got int"),
        ("prompt", None, "the task 'n2': load returned a Task.prompt that cannot be stored"),
        ("reference", 5, r"the task 'n2': .*Task.reference that cannot be stored: Expected str \| null, got int"),
        ("meta", {"x": object()}, "the task 'n2': .*Task that cannot be stored: .*object"),
    ],
)
def test_a_task_that_could_not_be_read_again_is_refused(registry, tmp_path, monkeypatch, field, value, said):
    numbers = registry.plugins["doubles"].offers["tasks"]["numbers"].build
    load = numbers.load
    monkeypatch.setattr(
        numbers, "load", lambda self, split: [replace(one, **{field: value}) for one in load(self, split)]
    )
    with pytest.raises(TaskError, match=f"tasks.use=numbers: {said}"):
        start(registry, tmp_path).train()
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("given", "said"), [(None, "0 train tasks"), ([{"id": "n2"}], "returned dict, not a Task")])
def test_invalid_tasks_of_a_source_are_refused(registry, tmp_path, monkeypatch, given, said):
    numbers = registry.plugins["doubles"].offers["tasks"]["numbers"].build
    monkeypatch.setattr(numbers, "load", lambda self, split: given)
    with pytest.raises(TaskError, match=f"tasks.use=numbers: .*{said}"):
        start(registry, tmp_path).train()


def test_a_run_that_has_nothing_to_amplify_is_warned_of_once(registry, tmp_path, capsys):
    trained = start(registry, tmp_path, "train.iterations=1").train()
    said = "before training, on held-out tasks: team: nothing to amplify: 0.0 % of rollouts are right"
    assert "".join(capsys.readouterr()).count(said) == 1
    Run.resume(trained.folder, "train.iterations=2", registry=registry).train()
    assert said not in "".join(capsys.readouterr())


def test_held_out_tasks_that_are_trained_on_are_warned_of(registry, tmp_path, monkeypatch, capsys):
    run = start(registry, tmp_path, "train.iterations=1")
    run.check()
    assert "trained on" not in "".join(capsys.readouterr())
    numbers = registry.plugins["doubles"].offers["tasks"]["numbers"].build
    load = numbers.load
    monkeypatch.setattr(numbers, "load", lambda self, split: load(self, "train"))
    said = (
        "10 held-out tasks are trained on, too (n2, n3, n4, n5, n6, …): a gain on them may be memory. Let the splits "
        "of tasks.use=numbers share no task.\n"
    )
    run.check()
    assert said in "".join(capsys.readouterr())
    run.train()
    assert said in "".join(capsys.readouterr())


def test_a_dry_run_counts_the_tasks_of_an_iteration(registry, tmp_path):
    with pytest.raises(ConfigError, match=r"train\.prompts=9999, but the source has only 10 training tasks"):
        start(registry, tmp_path, "train.prompts=9999").check()


def test_a_dry_run_writes_nothing(registry, tmp_path):
    assert "10 training and 4 held-out tasks" in start(registry, tmp_path).check()
    assert not (tmp_path / "runs").exists()


def test_a_dry_run_opens_what_it_would_resume(registry, tmp_path):
    trained = start(registry, tmp_path, "train.iterations=1").train()
    assert Run.resume(trained.folder, registry=registry).check().startswith("ready")
    (trained.folder / "run.db").write_bytes(b"no database, whatever it is called")
    with pytest.raises(RunError, match="it is not a database"):
        Run.resume(trained.folder, registry=registry).check()


async def test_train_works_inside_a_running_event_loop(registry, tmp_path):
    assert start(registry, tmp_path, "train.iterations=1").train().summary.status == "done"


def test_evaluations_in_between_are_made_once_and_found_again_on_resume(registry, tmp_path):
    trained = start(registry, tmp_path, "eval.every=2").train()
    assert [evaluation.iteration for evaluation in trained.evaluations] == [0, 2, 4]
    with RunReader(trained.folder) as reader:
        played = reader.counts("eval")
    again = Run.resume(trained.folder, registry=registry).train()
    assert [evaluation.iteration for evaluation in again.evaluations] == [0, 2, 4]
    with RunReader(trained.folder) as reader:
        assert reader.counts("eval") == played
        assert [evaluation.iteration for evaluation in reader.evaluations] == [0, 2, 4]


def test_a_tracker_that_fails_stops_nothing_and_one_that_works_hears_every_iteration(registry, tmp_path):
    settings = "trackers=[{use: notes, options: {fails: true}}, {use: notes}]"
    trained = start(registry, tmp_path, settings, "train.iterations=2").train()
    assert trained.summary.status == "done"
    broken, works = registry.plugins["doubles"].offers["trackers"]["notes"].build.made
    assert (broken.logged, works.heard, works.ending) == ([], [1, 2], "done")
    with RunReader(trained.folder) as reader:
        (event,) = reader.events("tracker")
    assert event.body["trouble"] == {
        "tracker": "notes",
        "failures": 4,
        "error": "log: ConnectionError: no dashboard",
        "dropped": 0,
        "left_busy": False,
    }


def test_a_workflow_that_always_raises_stops_the_run_and_says_why(registry, tmp_path):
    with pytest.raises(GuardStop, match=r"all 4 trajectories failed(.|\n)*KeyError(.|\n)*A checkpoint was written"):
        start(registry, tmp_path, "workflow.options.raises=true").train()


def test_a_workflow_that_raises_in_evaluation_counts_as_not_solved(registry, tmp_path):
    trained = start(registry, tmp_path, "workflow.options.raises_on=n20").train()
    assert trained.evaluations[0].failures == {"WorkflowError:KeyError": 1}
    assert trained.summary.eval.before.mean == 0.0


def test_workflow_without_a_recorded_metric_is_named_in_the_error(registry, tmp_path, monkeypatch):
    async def run(self, stage):
        stage.record(points=1.0)

    monkeypatch.setattr(registry.plugins["doubles"].offers["workflows"]["doubles"].build, "run", run)
    with pytest.raises(
        GuardStop, match=r"Doubles\.run ended without stage\.record\(correct=…\); is an await missing\?"
    ):
        start(registry, tmp_path).train()


def test_evaluation_stopped_by_a_workflow_error_is_repeated_on_resume(registry, tmp_path, monkeypatch):
    doubles = registry.plugins["doubles"].offers["workflows"]["doubles"].build
    run = doubles.run

    async def breaks(self, stage):
        await stage.act("doubler", [Message(role="user", content=stage.task.prompt)])
        raise KeyError("a bug of the workflow")

    monkeypatch.setattr(doubles, "run", breaks)
    with pytest.raises(GuardStop, match="all 4 trajectories failed"):
        start(registry, tmp_path).train()
    monkeypatch.setattr(doubles, "run", run)
    resumed = Run.resume(tmp_path / "runs" / "run", registry=registry).train()
    assert resumed.summary.status == "done" and resumed.evaluations[0].failures == {}


def test_an_evaluation_that_was_counted_with_failures_of_the_workflow_is_not_made_again(registry, tmp_path):
    start(registry, tmp_path, "workflow.options.raises_on=n20", "train.iterations=1").train()
    resumed = Run.resume(tmp_path / "runs" / "run", "train.iterations=2", registry=registry).train()
    assert [evaluation.failures for evaluation in resumed.evaluations] == [{"WorkflowError:KeyError": 1}] * 2
    with RunReader(resumed.folder) as reader:
        assert reader.events("played_on") == []


def test_coach_with_an_invalid_drift_report_is_named(registry, tmp_path, monkeypatch):
    strict = registry.plugins["doubles"].offers["coaches"]["strict"].build
    monkeypatch.setattr(strict, "learn", lambda self, trajectories: 17)
    with pytest.raises(PluginError, match=r"Strict\.learn returned int, not a DriftReport or None"):
        start(registry, tmp_path).train()


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (lambda ones, state: (Advantages(advantages=ones[:, None]), state), r"\((\d+), 1\) \(float32\), not \(\1,\)"),
        (lambda ones, state: (Advantages(advantages=np.tile(ones, 2)), state), r"\(\d+,\) \(float32\), not \(\d+,\)"),
        (lambda ones, state: (Advantages(advantages=list(ones)), state), r"\(\d+,\) \(list\), not"),
        (lambda ones, state: (Advantages(advantages=ones.astype(int)), state), r"\(\d+,\) \(int64\), not"),
        (lambda ones, state: Advantages(advantages=ones), "Advantages, not a pair"),
        (lambda ones, state: (Advantages(advantages=ones), None), "tuple, not a pair"),
    ],
)
@pytest.mark.parametrize(
    ("key", "where"),
    [("estimator", "estimator.use=grpo"), ("estimator.by_agent.checker", "estimator.by_agent.checker")],
)
def test_advantages_of_another_shape_are_refused(registry, tmp_path, monkeypatch, returned, said, key, where):
    def estimate(self, experience, state):
        return returned(np.ones(len(experience.tokens), np.float32), state)

    monkeypatch.setattr(registry.plugins["core"].offers["estimators"]["grpo"].build, "__call__", estimate)
    with pytest.raises(PluginError, match=rf"^{where} returned .*{said}"):
        start(registry, tmp_path, f"{key}.use=grpo").train()
