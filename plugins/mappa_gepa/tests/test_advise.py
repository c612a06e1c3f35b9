"""Advice on teams with one planted defect, and what a run and a budget must hold for it."""

import asyncio
import json
import shlex
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from desk_offers import Desk

from mappa.cli import main
from mappa.runs import RunReader
from mappa.sessions import Run, compose, evaluate_standalone, restore_trusted
from mappa.statistics import Interval
from mappa.testing import load_plugins
from mappa_gepa.advise.advice import RankedFix, choose
from mappa_gepa.advise.evidence import blamed_agents, mean_usd, read_evidence
from mappa_gepa.advise.fixes import Cost, Fix
from mappa_gepa.advise.short_training import train_shortly
from mappa_gepa.advise.trials import Trial
from mappa_gepa.relay.team import DUTIES, Relay
from mappa_gepa.rollouts import metric_value

SORTER = f"agents.sorter.prompt={json.dumps(Relay.prompts['sorter'])}"
PROPOSER = ("--proposer", "instruction-editor", "proposer.price={input: 1.0, output: 1.0}")


def policy(name, slip):
    options = {"slip": slip, "price": {"input": 0.1, "output": 0.4}}
    return f"policies.{name}={json.dumps({'kind': 'api', 'use': 'instruction-follower', 'options': options})}"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def record(registry):
    """Play the held-out tasks of a team, with its coach unless `eval.coach` says otherwise."""

    def play(*words):
        words = ("tasks.options.eval=48", "eval.coach=true", policy("default", 0.02), policy("other", 0.02), *words)
        composed = compose(registry, "gepa", overrides=words)
        return asyncio.run(evaluate_standalone(composed, registry)).folder

    return play


def advised(capsys, run, *arguments):
    code = main(["advise", str(run), "--json", *arguments])
    said = capsys.readouterr()
    assert code == 0, said.err
    return json.loads(said.out)


def test_the_remedy_for_a_run_without_verdicts_works(record, capsys):
    run = record("eval.coach=false")
    assert main(["advise", str(run)]) == 2
    remedy = capsys.readouterr().err.partition("for verdicts: mappa ")[2].split()
    assert main([word.replace("OFFER", "relay-duties") for word in remedy]) == 0, capsys.readouterr().err
    assert main(["advise", str(run)]) == 0


def test_headroom_of_an_agent_is_the_loss_in_rollouts_where_it_is_blamed(record):
    run = record(policy("default", 0.2))
    found = read_evidence(run, metric="correct", agents=tuple(DUTIES))
    with RunReader(run) as reader:
        played = [reader.trajectory(row.id) for row in reader.trajectories]
    failed = [one for one in played if not one.outcome["correct"]]
    blamed = {agent: sum(any(verdict.blame == agent for verdict in one.verdicts) for one in failed) for agent in DUTIES}
    assert {agent: round(48 * one.mean) for agent, one in found.headroom.items()} == blamed
    assert found.success.mean == pytest.approx(1 - len(failed) / 48) and found.unblamed.mean == 0
    assert (found.split, found.rollouts, found.tasks, found.unjudged) == ("eval", 48, 48, 0)
    assert all(value.low <= value.mean <= value.high for value in found.headroom.values())
    usd = sum(step.completion.usage.usd for one in played for step in one.steps)
    assert found.usd_per_rollout == pytest.approx(usd / 48) == pytest.approx(mean_usd(played))


def test_blame_falls_on_whom_a_verdict_names_or_on_who_acted(record):
    with RunReader(record()) as reader:
        one = reader.trajectory(next(iter(reader.trajectories)).id)
    (first, second, third), verdicts = one.steps, one.verdicts
    scores = {first.id: (10.0, "writer"), second.id: (4.0, None), third.id: (0.0, "nobody")}
    judged = tuple(replace(own, score=scores[own.step][0], blame=scores[own.step][1]) for own in verdicts)
    assert blamed_agents(replace(one, verdicts=judged)) == {"writer", second.agent}
    assert blamed_agents(replace(one, verdicts=())) == frozenset()


def test_without_trials_headroom_is_shown_and_no_fix_is_recommended(record, capsys):
    found = advised(capsys, record("seed=1"))  # the prompt of the recipe's sorter lacks an instruction
    assert found["recommended"]["choice"] == "cannot be told" and found["recommended"]["agent"] is None
    assert found["evidence"]["headroom"]["sorter"]["mean"] > 0.8
    assert all(fix["gain"] is None and fix["rests_on"] == "not tried" for fix in found["fixes"])
    assert found["fixes"][0]["agent"] == "sorter"
    assert found["fixes"][0]["cost"]["rollouts"] == 400 and found["trials"] == {"rollouts": 0, "usd": 0.0}
    assert "--rollouts" in found["recommended"]["command"]


def test_a_bad_prompt_is_told_from_a_bad_model_and_the_command_works(record, capsys):
    found = advised(capsys, record(), "--rollouts", "200", *PROPOSER, "--agent", "sorter", "--model", "sorter=other")
    best = found["recommended"]
    assert (best["choice"], best["agent"]) == ("prompt", "sorter")
    first, second = found["fixes"]
    assert first["fix"] == "prompt" and first["gains"] and first["gain"]["low"] > 0.3
    assert second["fix"] == "model" and not second["gains"]
    assert found["trials"]["rollouts"] <= 200 and found["trials"]["usd"] > 0
    assert main([*best["command"].split()[1:], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["mean"] > 0.7


def test_a_model_too_small_is_replaced(record, capsys):
    run = record(SORTER, policy("small", 0.4), "agents.writer.policy=small")
    found = advised(capsys, run, "--rollouts", "240", *PROPOSER, "--agent", "writer", "--model", "writer=other")
    assert (found["recommended"]["choice"], found["recommended"]["policy"]) == ("model", "other")
    assert found["recommended"]["command"].endswith("agents.writer.policy=other")


@pytest.mark.parametrize(
    ("own", "trials", "choice"),
    [
        ({"policy": "small"}, ("--rollouts", "240", "--model", "writer.v1 😀=other"), "model"),
        ({"policy": "small"}, ("--rollouts", "150", "--swap", "writer.v1 😀=cleaner"), "swap"),
        ({"prompt": "Write every word in capitals."}, ("--rollouts", "200", *PROPOSER), "prompt"),
    ],
)
def test_an_agent_of_any_name_is_given_another_policy_and_prompt(record, dotted, capsys, own, trials, choice):
    run = record(SORTER, policy("small", 0.4), f"agents={json.dumps({dotted: own})}")
    found = advised(capsys, run, "--agent", dotted, *trials)
    assert found["recommended"]["choice"] == choice and found["trials"]["rollouts"] > 0
    assert main([*shlex.split(found["recommended"]["command"])[1:], "--json"]) == 0, capsys.readouterr().err


def test_a_defect_of_no_agent_is_no_agents_fix(record, capsys):
    run = record(SORTER, policy("default", 0.0), "workflow.options.loss=0.4")
    found = advised(capsys, run, "--rollouts", "120", "--model", "writer=other")
    assert found["recommended"]["choice"] == "tools or tasks"


@pytest.mark.parametrize("seed", range(3))
def test_a_team_with_nothing_wrong_is_left_as_it_is(record, capsys, seed):
    run = record(SORTER, f"seed={seed}", f"tasks.options.seed={seed}")
    found = advised(capsys, run, "--rollouts", "150", "--model", "writer=other", "--model", "sorter=other")
    assert found["recommended"]["choice"] == "nothing" and found["trials"]["rollouts"] <= 150


def tried(kind, gain, *, stopped=False, policy=None):
    fix, cost = Fix(kind=kind, agent="a", policy=policy), Cost(rollouts=1, usd=None, hours=None, measured=True)
    trial = Trial(fix=fix, gain=gain, tasks=9, stopped=stopped, cost=cost, usd_per_rollout=None, settings=None)
    return RankedFix(fix=fix, cost=cost, trial=trial)


EVIDENCE = SimpleNamespace(
    headroom={"a": Interval(mean=0.2, low=0.1, high=0.3)}, unblamed=Interval(mean=0.1, low=0.0, high=0.2)
)


def test_the_cheapest_of_those_that_gain_as_much_is_chosen():
    prompt = tried("prompt", Interval(mean=0.30, low=0.1, high=0.5))
    model = tried("model", Interval(mean=0.31, low=0.1, high=0.5), policy="big")
    better = tried("model", Interval(mean=0.40, low=0.1, high=0.6), policy="huge")
    assert choose([model, prompt], EVIDENCE) == ("prompt", prompt)
    assert choose([model, prompt, better], EVIDENCE) == ("model", better)


def test_fix_is_chosen_only_after_a_whole_race_with_a_gain_above_0():
    for gain in (Interval(mean=0.3, low=-0.01, high=0.6), Interval(mean=0.3), None):
        assert choose([tried("prompt", gain)], EVIDENCE) == ("nothing", None)
    assert choose([tried("prompt", Interval(mean=0.3, low=0.1, high=0.5), stopped=True)], EVIDENCE)[1] is None


def test_tools_and_tasks_are_advised_where_certainly_more_is_lost_than_by_any_agent():
    for low, choice in ((0.15, "cannot be told"), (0.21, "tools or tasks")):
        unblamed = Interval(mean=0.25, low=low, high=0.35)
        assert choose([], SimpleNamespace(headroom=EVIDENCE.headroom, unblamed=unblamed)) == (choice, None)


def test_the_table_fits_a_terminal(record, capsys, monkeypatch):
    run = record()
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["advise", str(run), "--quiet", "--rollouts", "130", *PROPOSER, "--agent", "sorter"]) == 0
    table = [line for line in capsys.readouterr().out.splitlines() if not line.startswith(("next", "advice", "team"))]
    assert max(map(len, table)) <= 80 and not any("…" in line for line in table)
    assert any(line.startswith("sorter") and "prompt" in line for line in table)


def test_wrong_input_is_one_line_and_exit_code_2(record, capsys):
    judged, unjudged = record(), record("eval.coach=false")
    local = Path("local")
    local.mkdir()
    (local / "run.db").write_bytes((judged / "run.db").read_bytes())
    config = (judged / "config.yaml").read_text()
    (local / "config.yaml").write_text(config.replace("use: instruction-follower", "use: not-installed", 1))
    cases = {
        (unjudged,): "holds no rollouts that have a verdict with a score and a result (correct)",
        (judged, "--agent", "boss"): "'boss' is no agent of this team, which has cleaner, sorter, writer",
        (judged, "--model", "boss=other", "--rollouts", "9"): "'boss' is no agent of this team",
        (judged, "--model", "writer=bigger", "--rollouts", "9"): "--model writer=bigger: no such policy",
        (judged, "--model", "writer"): "--model writer: not AGENT=POLICY",
        (judged, "--rollouts", "40", *PROPOSER): "--rollouts 40: too few to tell anything",
        (judged, "--rollouts", "40"): "--rollouts: nothing is named to be tried",
        (Path("nowhere"),): "nowhere",
        (local, "--rollouts", "200", *PROPOSER): "not-installed",
    }
    for (run, *arguments), message in cases.items():
        capsys.readouterr()
        assert main(["advise", str(run), *arguments]) == 2, arguments
        error = capsys.readouterr().err
        assert message in error.replace("\n", " ") and "Traceback" not in error


def test_a_race_is_no_run_of_one_team(record, capsys):
    advised(capsys, record(SORTER), "--rollouts", "120", "--model", "writer=other")
    (race,) = Path("runs").glob("*-advise-*")
    assert main(["advise", str(race)]) == 2
    assert "rollouts of many teams" in capsys.readouterr().err


def test_the_team_as_it_is_and_with_a_fix_play_the_same_tasks(record, capsys):
    advised(capsys, record(SORTER), "--rollouts", "80", "--model", "writer=other")
    (race,) = Path("runs").glob("*-advise-*")
    with RunReader(race) as reader:
        tasks = [sorted(row.task for row in reader.trajectories.where(iteration=team)) for team in (0, 1)]
        assert tasks[0] == tasks[1] and len(set(tasks[0])) == len(tasks[0]) == 40
        assert np.all([row.step.policy == ("other" if row.iteration else "writer") for row in reader.steps
                       if row.step.agent == "writer"])  # fmt: skip
        assert len(reader.events("advised_team")) == 2


def test_a_gain_is_of_as_many_tasks_as_both_teams_have_a_result_on(record, capsys, monkeypatch):
    def lose_one(trajectory, metric):
        lost = trajectory.iteration == 0 and trajectory.task.id.endswith("0000")
        return None if lost else metric_value(trajectory, metric)

    monkeypatch.setattr("mappa_gepa.advise.trials.metric_value", lose_one)
    run = record(SORTER, "eval.problems=16")
    said = advised(capsys, run, "--rollouts", "80", "--model", "writer=other")
    assert [one["tasks"] for one in said["fixes"] if one["fix"] == "model"] == [15]


def test_tasks_too_few_for_three_looks_are_played_once(record, capsys):
    said = advised(capsys, record(SORTER, "eval.problems=1"), "--rollouts", "80", "--model", "writer=other")
    assert said["trials"]["rollouts"] == 2
    assert [one["tasks"] for one in said["fixes"] if one["fix"] == "model"] == [1]


DESK = ("tasks.options.eval=72", "checkpoint.every=4")
MENDED = "agents.solver.prompt=" + json.dumps(Desk.prompts["solver"])


@pytest.fixture(scope="module")
def trained(tmp_path_factory, desk):
    """A short training of the small models, in which the greeter alone learns: the solver's weights are the defect."""
    root = tmp_path_factory.mktemp("desk")
    only = "shapers=[{use: scale}, {use: only_agent, options: {agent: greeter}}]"
    words = (f"run.root={root}", "run.name=run", "prompts=null", MENDED, *DESK, "train.iterations=4", only)
    return Run.from_recipe("desk/tiny", *words).train().folder


@pytest.mark.slow
def test_an_agent_whose_weights_are_the_defect_is_trained(trained, capsys):
    found = advised(capsys, trained, "--rollouts", "500", "--train", "--agent", "solver")
    chosen = found["recommended"]
    assert chosen["agent"] == "solver" and chosen["choice"] in ("sft", "train"), found
    by_kind = {(one["agent"], one["fix"]): one for one in found["fixes"]}
    assert {kind for agent, kind in by_kind if agent == "solver"} == {"prompt", "sft", "train"}
    tried = by_kind["solver", chosen["choice"]]
    assert tried["gains"] and tried["rests_on"] == "trial" and tried["cost"]["measured"]
    assert tried["cost"]["rollouts"] > 0 and tried["cost"]["hours"] > 0
    assert by_kind["solver", "prompt"]["rests_on"] == "not tried"
    assert found["trials"]["rollouts"] <= 500
    assert main(["eval", *chosen["command"].split()[2:], "--quiet", "--json", "run.name=fixed"]) == 0
    capsys.readouterr()


def test_the_other_agents_do_not_move_in_a_short_training(trained):
    installed = load_plugins()
    found = asyncio.run(
        train_shortly(
            Fix(kind="train", agent="solver"),
            lambda *words: restore_trusted(installed, trained, ("run.name=null", *words)),
            installed,
            agents=("greeter", "solver"),
            weights=trained / "checkpoints/000004",
            rollouts=1 + 32,
            on_providers=lambda providers: None,
            on_rollout=lambda trajectory: None,
        )
    )
    assert found.rollouts == 1 + 32

    def weights(checkpoint, policy):
        return (checkpoint / "policies" / policy / "weights.safetensors").read_bytes()

    before, after = trained / "checkpoints/000004", found.weights
    assert weights(before, "greeter") == weights(after, "greeter")
    assert weights(before, "solver") != weights(after, "solver")


def test_agents_whose_policies_are_swapped_play_by_each_others(record, capsys):
    small = policy("small", 0.5)
    run = record(small, SORTER, "agents.sorter.policy=small")
    found = advised(capsys, run, "--rollouts", "150", "--swap", "sorter=cleaner")
    (swap,) = [one for one in found["fixes"] if one["fix"] == "swap"]
    assert (swap["agent"], swap["other"], swap["tasks"]) == ("sorter", "cleaner", 48)
    assert not swap["gains"], "each follows as many instructions, so the slips only move"


def test_a_swap_that_changes_nothing_is_refused(record, capsys):
    assert main(["advise", str(record()), "--rollouts", "150", "--swap", "sorter=cleaner"]) == 2
    assert "--swap sorter=cleaner: both play by equal policies" in capsys.readouterr().err
