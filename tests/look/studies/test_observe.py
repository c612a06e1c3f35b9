"""Watching a team: who fails, how often, why, and without anything that trains."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mappa.cli import main
from mappa.look.observe import diagnose
from mappa.runs import RunReader, build_evaluation
from mappa_core import Breach, Completion, Message, Role, Step, Task, ToolResult, Trajectory, Verdict


def step(trajectory, position, agent, *, results=(), breaches=()):
    tokens = np.zeros(1, dtype=np.int32)
    completion = Completion(
        text="x", prompt_tokens=tokens, tokens=tokens, logprobs=np.zeros(1, np.float32), finish="stop"
    )
    return Step(
        id=f"{trajectory}/{position:03d}", agent=agent, turn=0, position=position, policy=agent, messages=(),
        reply=Message(role="assistant", content="x"), completion=completion, results=results, breaches=breaches,
    )  # fmt: skip


def played(name, correct, verdicts, **steps):
    """One rollout of a maker and a user; `verdicts` are (score, blame) of both."""
    maker = step(name, 0, "maker", **steps)
    user = step(name, 1, "reader", results=(ToolResult(tool="python", status="error"),))
    judged = [
        replace(Verdict.scored(score, f"{score}", blame=blame), step=one.id)
        for one, (score, blame) in zip((maker, user), verdicts, strict=True)
    ]
    return Trajectory(
        id=name, task=Task(id=name, prompt="p"), sample=0, iteration=0, steps=(maker, user), verdicts=tuple(judged),
        outcome={"correct": correct},
    )  # fmt: skip


ROLLOUTS = [
    played("a", 0.0, [(1, "maker"), (8, "maker")], breaches=(Breach(agent="maker", kind="missing_output", path="f"),)),
    played("b", 0.0, [(9, None), (3, "reader")]),
    played("c", 0.0, [(9, None), (9, "nobody")]),
    played("d", 1.0, [(9, "nobody"), (2, "reader")]),
]


ROLES = {"maker": Role(brief="makes", produces=("f",)), "reader": Role(brief="uses", needs=("f",))}


def test_blame_is_counted_by_rollouts_that_did_not_succeed():
    evaluation = build_evaluation(ROLLOUTS, metric="correct", iteration=0)
    seen = diagnose(ROLLOUTS, ROLES, evaluation, Path("run"), examples=1)
    maker, user = seen.agents
    assert (seen.rollouts, seen.unsuccessful, seen.cannot_tell) == (4, 3, 1)
    assert (maker.blamed, user.blamed) == (1, 1)
    assert (maker.low, user.low, maker.scored, user.scored) == (1, 2, 4, 4)
    assert (maker.tool_calls, user.tool_calls, user.tool_failures) == (0, 4, 4)
    (handoff,) = seen.handoffs
    assert (handoff.path, handoff.missing, handoff.failed_first) == ("f", 1, 1)
    assert maker.score.mean == 7.0 and user.score.mean == 5.5
    assert [(example.step, example.score) for example in user.examples] == [("d/001", 2.0)]
    assert seen.coach.total.verdicts == 8 and seen.coach.total.missing == 0.0


def test_a_verdict_without_a_score_is_no_low_one():
    lost = [replace(one, verdicts=tuple(replace(Verdict.failed("away"), step=v.step) for v in one.verdicts))
            for one in ROLLOUTS]  # fmt: skip
    evaluation = build_evaluation(lost, metric="correct", iteration=0)
    seen = diagnose(lost, ROLES, evaluation, Path("run"), examples=3)
    assert [(agent.score, agent.low, agent.scored, agent.examples) for agent in seen.agents] == [(None, 0, 0, ())] * 2
    assert seen.coach.reasons == {"failed: away": 8}


def test_what_a_coach_says_in_clusters_of_tasks_is_not_taken_for_more_than_them():
    apart = diagnose(
        ROLLOUTS, ROLES, build_evaluation(ROLLOUTS, metric="correct", iteration=0), Path("run"), examples=0
    )
    same = [replace(one, task=replace(one.task, cluster="ab" if one.id in "ab" else "cd")) for one in ROLLOUTS]
    together = diagnose(same, ROLES, build_evaluation(same, metric="correct", iteration=0), Path("run"), examples=0)
    scores = [one.agents[0].score for one in (apart, together)]
    assert scores[0].mean == scores[1].mean and scores[0].high < scores[1].high


def test_a_failure_can_be_proved_where_its_own_coach_blames_somebody():
    def provable(rollouts):
        evaluation = build_evaluation(rollouts, metric="correct", iteration=0)
        return diagnose(rollouts, ROLES, evaluation, Path("run"), examples=0).provable

    failed, _, nobody, succeeded = ROLLOUTS
    again = replace(failed, verdicts=tuple(replace(one, phase="again") for one in failed.verdicts))
    assert provable([nobody, failed])
    assert not provable([nobody, succeeded, again])


# --- what is recorded -------------------------------------------------------------------------------------------------


def test_recorded_rollouts_are_watched_with_the_verdicts_they_had(trained, capsys):
    before = {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()}
    assert main(["observe", str(trained)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("training rollouts after 2 iterations: correct ")
    assert re.search(r"\n doubler +\d+ +\d\.\d ± ", shown) and "hand-off" not in shown
    assert {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()} == before


def test_an_evaluation_without_a_coach_is_watched_too(trained, capsys):
    assert main(["observe", str(trained), "--split", "eval", "--iteration", "0"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("held-out after 0 iterations: correct ")
    assert "no coach was asked about them" in shown and "to blame" not in shown


def test_verdicts_of_a_second_coach_are_left_out(run, registry, capsys):
    assert main(["observe", str(run), "--json"]) == 0
    before = json.loads(capsys.readouterr().out)
    assert main(["judge", str(run), "--coach", "strict", "wrong=9"]) == 0
    capsys.readouterr()
    assert main(["observe", str(run), "--json"]) == 0
    after = json.loads(capsys.readouterr().out)
    assert after == before
    assert (after["split"], after["iteration"]) == ("train", 2) and set(after["strata"]) <= {"even", "odd"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["RUN", "--iteration", "7"], "holds no train rollouts after 7 iterations that ended"),
        (["RUN", "eval.samples=2"], "observing a RUN plays nothing: leave out"),
        (["--plugin", "doubles", "--split", "eval"], "name a RUN with them"),
        (["nowhere"], "nowhere"),
    ],
)
def test_what_cannot_be_observed_is_refused(trained, arguments, said, capsys):
    assert main(["observe", *(str(trained) if one == "RUN" else one for one in arguments)]) == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_tasks_that_chose_the_checkpoint_are_not_taken_for_held_out_ones(make_run, capsys):
    folder = make_run("checkpoint.best=true", "train.iterations=2", "eval.every=1")
    with RunReader(folder) as reader:
        reported, chosen = (
            {trajectory.task.id for trajectory in reader.outcomes(0, part)} for part in ("report", "selection")
        )
        assert {evaluation.iteration for evaluation in reader.evaluations if evaluation.part == "report"} == {0}
    for words in ((), ("--iteration", "0")):
        assert main(["observe", str(folder), "--split", "eval", *words]) == 0
        line = capsys.readouterr().out.splitlines()[0]
        assert line.startswith("held-out, reported, after 0 iterations: ") and f"over {len(reported)} " in line
    assert main(["observe", str(folder), "--split", "eval", "--iteration", "2"]) == 0
    line = capsys.readouterr().out.splitlines()[0]
    assert line.startswith("held-out, to choose by, after 2 iterations: ") and f"over {len(chosen)} " in line


# --- what is played ---------------------------------------------------------------------------------------------------

SCRIPT = """
import sys
from mappa.cli import main

assert main({arguments!r}) == 0
heavy = {{"torch", "transformers"}} & set(sys.modules)
sys.exit(f"imported {{sorted(heavy)}}" if heavy else 0)
"""

WIRE = """
from dataclasses import dataclass
from mappa_core import Usage
from mappa_core.transport import Reply

@dataclass
class Wire:
    says: str = "ok"
    model = "wire-1"
    host = "nowhere.example"

    async def complete(self, request):
        usage = Usage(calls=1, prompt_tokens=10, completion_tokens=2)
        return Reply(text=self.says, stop="end", model="wire-1", raw="{}", usage=usage)

    async def count(self, messages):
        return None

    async def close(self):
        pass

@dataclass
class Options:
    says: str = "ok"

@hookimpl
def mappa_transports():
    yield Offer("wire", lambda options: Wire(options.says), Options)
"""


@pytest.fixture
def arguments(site, tmp_path):
    site.write("wires", WIRE)
    verdict = '{"reasoning": "fine", "blame": null, "score": 6}'
    settings = tmp_path / "settings.yaml"
    settings.write_text(
        json.dumps(
            {
                "policies": {
                    "default": {"kind": "api", "use": "wire", "options": {"says": "```python\nprint(1)\n```"}}
                },
                "coach": {"use": "wire", "options": {"says": verdict, "price": {"input": 1.0, "output": 2.0}}},
                "eval": {"problems": 3},
                "run": {"root": str(tmp_path / "runs")},
            }
        )
    )
    return ["observe", "--plugin", "mathchat", "--config", str(settings)]


def test_a_team_behind_an_api_is_watched_without_torch_and_said_where_its_words_go(arguments, site):
    command = [sys.executable, "-c", SCRIPT.format(arguments=arguments)]
    environment = {**os.environ, "PYTHONPATH": site.python_path}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "is sent to wire (wire-1) at nowhere.example" in done.stderr
    assert "code_executor" in done.stdout and "6.0" in done.stdout


def test_the_diagnosis_as_json_holds_cost_and_agents(arguments, capsys):
    assert main([*arguments, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert set(shown["agents"]) == {"problem_solver", "code_executor", "verifier"}
    assert shown["agents"]["verifier"]["score"]["mean"] == 6.0
    verdicts = shown["coach"]["total"]["usage"]["calls"]
    assert verdicts >= 9
    assert shown["coach"]["total"]["usage"]["usd"] == pytest.approx(verdicts * (10 * 1.0 + 2 * 2.0) / 1e6)


def test_a_cap_on_spending_wants_to_know_every_price(arguments, capsys):
    assert main([*arguments, "coach.spend_usd=1"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "the price of wire (wire-1) is unknown" in said and "options.price" in said


def test_watching_without_a_coach_is_refused(arguments, capsys):
    assert main([*arguments, "eval.coach=false"]) == 2
    assert "eval.coach=true" in capsys.readouterr().err
