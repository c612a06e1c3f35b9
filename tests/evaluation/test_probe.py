"""What a probe says can be learned: four prepared cases, and the figures that they stand on."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from mappa.evaluation.heldout import build_evaluation
from mappa.evaluation.probe import measure_probe, probe_session
from mappa.evaluation.statistics import share_interval
from mappa_core import Completion, Failure, Message, Step, Task, ToolCall, Trajectory, Verdict
from mappa_core.records import VersionSpan

AGENTS = ("solver", "judge")


def action(agent, trajectory, position, *, finish="stop", tools=(), calls=()):
    completion = Completion(
        text="x",
        prompt_tokens=np.array([1], np.int32),
        tokens=np.array([2], np.int32),
        logprobs=np.array([-1.0], np.float32),
        finish=finish,
        versions=(VersionSpan(version=0, start=0, end=1),),
    )
    return Step(
        id=f"{trajectory}/{position}", agent=agent, turn=0, position=position,
        policy="learner" if agent == "solver" else "fixed", messages=(Message(role="user", content="?"),),
        reply=Message(role="assistant", content="x"), completion=completion, tools=tools, calls=calls,
    )  # fmt: skip


def rollout(task, sample, score, correct, **given):
    """One of the solver, whose action got a score (None: abstained), and of the judge, whom nobody scores."""
    name = f"{task}/{sample}"
    steps = action("solver", name, 0, **given), action("judge", name, 1)
    verdict = Verdict.abstained("") if score is None else Verdict.scored(score, "")
    return Trajectory(
        id=name, task=Task(id=str(task), prompt="?"), sample=sample, iteration=0, steps=steps,
        verdicts=(replace(verdict, step=steps[0].id),), outcome={"correct": float(correct)},
    )  # fmt: skip


@pytest.fixture
def measured(build_experience):
    """Probe rollouts of which the solver learns."""

    def measure(rollouts):
        evaluation = build_evaluation(rollouts, metric="correct", iteration=0)
        return measure_probe(evaluation, rollouts, build_experience(rollouts), AGENTS)

    return measure


@pytest.fixture
def build_probe(experience_builder):
    """Probe rollouts of which the solver learns, with this `credit.overflow`."""

    def build(overflow, rollouts):
        evaluation = build_evaluation(rollouts, metric="correct", iteration=0)
        learned = SimpleNamespace(
            experience_builder=experience_builder(overflow), workflow=SimpleNamespace(agents=dict.fromkeys(AGENTS))
        )
        return probe_session(learned, evaluation, rollouts)

    return build


@pytest.fixture
def probed(measured):
    """Probe tasks with these scores of their samples, (tasks, samples); `correct`: right outcomes, by default those of
    the solver."""

    def probe(scores, correct=None):
        return measured(
            [
                rollout(task, sample, score, (score or 0) > 5 if correct is None else correct[task][sample])
                for task, row in enumerate(scores)
                for sample, score in enumerate(row)
            ]
        )

    return probe


CASES = {
    "nothing to amplify": [[0, 0]] * 32,
    "always solved": [[10, 10]] * 32,
    "no spread": [[10, 10]] * 16 + [[0, 0]] * 13 + [[0, 10]] * 3,
    "fine": [[10, 10]] * 16 + [[0, 0]] * 12 + [[0, 10]] * 4,
}


@pytest.mark.parametrize(("finding", "scores"), CASES.items())
def test_each_case_is_named_of_team_and_agent(probed, finding, scores):
    found = probed(scores)
    assert (found.team.finding, found.agents["solver"].finding) == (finding, finding)
    assert set(found.describe()) == {"team", "solver"}, "of the judge, who is not trained, nothing is said"
    assert all(sentence.startswith(f"{finding}: ") for sentence in found.describe().values())
    assert len(found.warnings()) == (finding != "fine")


def test_each_sentence_says_on_what_grounds_and_what_to_do(probed):
    says = {finding: probed(scores).agents["solver"].describe("solver") for finding, scores in CASES.items()}
    assert says["nothing to amplify"] == (
        "nothing to amplify: 0.0 % of actions are right, and siblings differ in 0 of 32 groups. Warm-start first: "
        "mappa warm-start --agent solver"
    )
    assert says["always solved"].startswith("always solved: 100.0 % of actions are right, and siblings differ in 0 of")
    assert says["no spread"].startswith("no spread: siblings differ in 3 of 32 groups, so comparing siblings teaches")
    assert says["fine"] == "fine: siblings differ in 4 of 32 groups"


def test_outcomes_that_never_differ_are_no_matter_where_verdicts_do(probed):
    found = probed([[0, 10]] * 8, correct=[[0, 0]] * 8)
    assert found.team.finding == "nothing to amplify" and found.agents["solver"].finding == "fine"
    assert found.describe()["team"].endswith("by the outcome alone: the rewards of solver tell actions apart")
    assert found.warnings() == []


def test_without_verdicts_the_outcome_alone_is_warned_of(probed):
    found = probed([[None, None]] * 8, correct=[[0, 0]] * 8)
    solver = found.agents["solver"]
    assert (solver.pass_at_1, solver.pass_at_k, solver.groups, solver.finding) == (None, None, 0, "cannot be told")
    (warning,) = found.warnings()
    assert warning.startswith("team: nothing to amplify: 0.0 % of rollouts are right")


@pytest.mark.parametrize(
    ("right", "finding"),
    [([0, 0, 0], "nothing to amplify"), ([1, 1, 1], "always solved"), ([0, 0, 1], "cannot be told")],
)
def test_one_sample_of_each_task_says_something_only_if_all_are_alike(probed, right, finding):
    found = probed([[None]] * 3, correct=[[one] for one in right])
    assert (found.team.groups, found.team.finding) == (0, finding)


def test_pass_at_k_is_by_task_and_its_interval_by_cluster(probed):
    found = probed(
        [[0, 10, 0], [0, 0, 0], [10, 10, 0], [6, 5, None]], correct=[[0, 1, 0], [0, 0, 0], [1, 1, 0], [1, 0, 0]]
    )
    solver = found.agents["solver"]
    # Above half of the points is right: 1 of 3, none of 3, 2 of 3, and 1 of 2, which are too few for pass@3.
    actions, tasks = [0, 1, 0, 0, 0, 0, 1, 1, 0, 1, 0], [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3]
    assert solver.pass_at_1 == share_interval(actions, tasks)
    assert solver.pass_at_k == share_interval([1, 0, 1], [0, 1, 2])
    assert found.team.pass_at_k == share_interval([1, 0, 1, 1])
    assert (solver.differing, solver.groups) == (3, 4)
    judge = found.agents["judge"]
    assert (judge.pass_at_1, judge.groups, judge.trained) == (None, 0, False)


def test_actions_that_were_cut_off_or_called_no_tool_are_counted(measured):
    offered = {"tools": ("python",)}
    rollouts = [
        rollout(0, 0, 10, 1, finish="length", **offered),
        rollout(0, 1, 10, 1, calls=(ToolCall(name="python"),), **offered),
        rollout(1, 0, 10, 1, **offered),
        rollout(1, 1, 10, 1),
    ]
    found = measured(rollouts).agents
    assert (found["solver"].cut_off, found["solver"].no_call) == (0.25, pytest.approx(2 / 3))
    assert (found["judge"].cut_off, found["judge"].no_call) == (0.0, None)


@pytest.mark.parametrize(
    ("overflow", "groups", "differing", "right"), [("unsolved", 3, 2, [0, 1, 1, 0, 0, 0]), ("unknown", 1, 0, None)]
)
def test_what_outgrew_the_window_is_as_in_training(build_probe, overflow, groups, differing, right):
    """Of two tasks one sample each outgrew the window, written by a solver that its coach liked; a third task is whole.
    As in an evaluation half of the first two is right; training compares it only if it is unsolved."""

    def outgrown(task, sample):
        whole = rollout(task, sample, 10, 0)
        quoted = {whole.steps[0].id: 80}
        return replace(whole, outcome={}, error=Failure(kind="PromptTooLong", message="80 > 64", quoted=quoted))

    rollouts = [
        outgrown(0, 0), rollout(0, 1, 10, 1), rollout(1, 0, 10, 1), outgrown(1, 1), rollout(2, 0, 0, 0),
        rollout(2, 1, 0, 0),
    ]  # fmt: skip
    found = build_probe(overflow, rollouts)
    assert found.team.pass_at_1.mean == found.team.pass_at_k.mean - 1 / 3 == pytest.approx(1 / 3)
    assert (found.team.groups, found.team.differing) == (groups, differing)
    solver = found.agents["solver"]
    assert solver.pass_at_1.mean == pytest.approx(4 / 6 if right is None else sum(right) / 6)
    # The coach alone tells no sample from the other.
    assert (solver.groups, solver.differing) == (3, 0 if overflow == "unknown" else 2)


def test_what_failed_otherwise_is_compared_with_nothing(measured):
    failed = replace(rollout(0, 0, 10, 0), outcome={}, error=Failure(kind="WorkflowError:KeyError", message="x"))
    found = measured([failed, rollout(0, 1, 10, 1), rollout(1, 0, 10, 1), rollout(1, 1, 10, 0)])
    assert (found.team.groups, found.team.differing) == (1, 1)
    assert found.team.pass_at_1.mean == 0.5
