"""What is predicted is what is counted: calls, tokens, money, memory; and what is not known is said to be so."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from mappa.look.plan import RunPlan, plan_run
from mappa.look.plan.workload import ZERO, PlannedAmount, Workload, multiply_amounts, sum_amounts
from mappa.runs import RunReader
from mappa.sessions import Run, compose
from mappa.testing import FixedCoach, load_plugins
from mappa_core import ConfigError, Offer, Registry, RunError, Usage, hookimpl
from mappa_core.engine import Machine
from mappa_core.transport import Provider, Reply

NOWHERE = (Machine(host="here", cpus=2),)
PRICE = "{input: 2.0, output: 8.0}"
CLERK = f"{{model: c-1, price: {PRICE}, max_tokens: 500}}"


@dataclass
class ClerkOptions:
    model: str = "???"
    keyless: bool = False


class Clerk:
    """A provider whose replies are the longer the longer the question is; one in eighteen has no reason."""

    host = "clerk.example"

    def __init__(self, options: ClerkOptions) -> None:
        self.model = options.model

    async def complete(self, request):
        asked = sum(len(message.content) for message in request.messages)
        text = json.dumps({"reasoning": "x" * (asked % 18), "blame": None, "score": 5})
        usage = Usage(calls=1, prompt_tokens=asked // 4, completion_tokens=len(text) // 4, cached_tokens=0)
        return Reply(text=text, stop="end", model=self.model, raw=text, usage=usage)

    async def count(self, messages):
        return None

    async def close(self):
        pass


class Sealed(Clerk):
    """A provider that cannot be built without a key."""

    def __init__(self, options: ClerkOptions) -> None:
        raise ConfigError("no key")


class Caller(FixedCoach):
    """A coach of another make that asks somebody."""

    @property
    def providers(self):
        return (Provider(name="else", model="m", host="else.example", priced=False),)


class Clerks:
    """Providers, and coaches of their own making."""

    @hookimpl
    def mappa_transports(self):
        yield Offer("clerk", Clerk, ClerkOptions)
        yield Offer("sealed", Sealed, ClerkOptions)

    @hookimpl
    def mappa_coaches(self):
        yield Offer("caller", lambda options: Caller(5.0))


@pytest.fixture(scope="module")
def registry(module_site) -> Registry:
    module_site.install("acme_doubles")
    return load_plugins(
        only=("look", "calibration", "doubles", "engine", "mathchat", "sandbox"), modules={"clerks": Clerks()}
    )


@pytest.fixture(scope="module")
def roots(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("runs")


async def planned(registry, recipe, *settings, **options) -> RunPlan:
    return await plan_run(compose(registry, recipe=recipe, overrides=settings), registry, NOWHERE, **options)


def counted(folder) -> dict[str, float]:
    """What a run really took, from its record."""
    with RunReader(folder) as reader:
        every = [reader.trajectory(row.id) for row in reader.trajectories]
    steps = [step.completion for one in every for step in one.steps]
    usages = [verdict.usage for one in every for verdict in one.verdicts if verdict.usage is not None]
    return {
        "trajectories": len(every),
        "actions": len(steps),
        "sampled_tokens": sum(len(step.tokens) for step in steps if step.tokens is not None),
        "prompt_tokens": sum(len(step.prompt_tokens) for step in steps if step.prompt_tokens is not None),
        "verdicts": sum(len(one.verdicts) for one in every),
        "coach_calls": sum(one.calls for one in usages),
        "coach_prompt_tokens": sum(one.prompt_tokens for one in usages),
        "coach_completion_tokens": sum(one.completion_tokens for one in usages),
        "coach_usd": sum(one.usd for one in usages),
    }


def assert_near(work: Workload, counts: dict[str, float], share: float = 0.2) -> None:
    for name, count in counts.items():
        amount = getattr(work, name)
        assert not amount.at_most and amount.value == pytest.approx(count, rel=share), name


# --- predicted against counted ----------------------------------------------------------------------------------------


async def test_a_short_run_predicts_calls_tokens_and_money_of_a_longer_one(registry, roots):
    clerk = ("coach.use=clerk", f"coach.options={CLERK}", "coach.cassette.mode=off", "eval.every=2")
    short = Run.from_recipe("doubles/tiny", *clerk, "train.iterations=2", f"run.root={roots}", registry=registry)
    longer = ("train.iterations=6", "train.prompts=5", "eval.problems=4")
    ran = Run.from_recipe("doubles/tiny", *clerk, *longer, f"run.root={roots}", registry=registry).train()
    found = await planned(registry, "doubles/tiny", *clerk, *longer, previous=short.train().folder)
    counts = counted(ran.folder)
    # A reply without a reason is sent back, which is a call more.
    assert counts["coach_calls"] > counts["verdicts"] > 100 and counts["coach_usd"] > 0
    assert_near(found.run, counts)
    assert found.run.trajectories.value == counts["trajectories"] == 6 * 10 + 4 * 4
    assert (found.iterations, found.evaluations) == (6, 4)
    fewer = await planned(registry, "doubles/tiny", *clerk, *longer, "eval.before=false")
    assert fewer.evaluations == 3
    assert found.evaluation.verdicts == ZERO and found.evaluation.coach_usd == ZERO
    assert found.run.usd == found.run.coach_usd


@pytest.fixture(scope="module")
def short(registry, roots) -> Path:
    """Two small iterations of MathChat's tiny team."""
    settings = ("train.iterations=2", "train.prompts=8", "eval.problems=8", f"run.root={roots}")
    return Run.from_recipe("mathchat/tiny", *settings, registry=registry).train().folder


@pytest.mark.slow
async def test_a_short_run_predicts_actions_and_tokens_of_a_team_that_learns(registry, roots, short):
    longer = ("train.iterations=3", "train.prompts=8", "eval.problems=12", "seed=7")
    ran = Run.from_recipe("mathchat/tiny", *longer, f"run.root={roots}", registry=registry).train()
    found = await planned(registry, "mathchat/tiny", *longer, previous=short)
    counts = {name: count for name, count in counted(ran.folder).items() if not name.startswith("coach")}
    assert_near(found.run, counts)
    assert found.run.coach_calls == ZERO and found.run.usd == ZERO
    assert found.hours.value > 0 and found.notes == ()


async def test_bounds_of_the_recipe_are_not_exceeded(registry, short):
    found = await planned(registry, "mathchat/tiny", "train.iterations=2", "train.prompts=8", "eval.problems=8")
    counts = counted(short)
    for name in ("actions", "sampled_tokens", "verdicts"):
        amount = getattr(found.run, name)
        assert amount.at_most and amount.value >= counts[name]
    assert found.run.trajectories == PlannedAmount(counts["trajectories"])
    assert found.run.actions.value == counts["trajectories"] * 4  # one Solver, two Coders, one Verifier
    assert found.run.prompt_tokens is None and found.hours is None


@pytest.mark.slow
async def test_rollouts_of_tasks_that_are_replaced_are_bounded_or_as_many_as_a_run_had(registry, roots):
    rounds = ("train.dynamic_sampling=2", "train.prompts=8", "train.iterations=2", "coach.use=caller")
    found = await planned(registry, "mathchat/tiny", *rounds)
    assert found.iteration.trajectories == PlannedAmount(3 * 16.0, at_most=True)
    assert found.iteration.verdicts == PlannedAmount(3 * 64.0, at_most=True)
    ran = Run.from_recipe("mathchat/tiny", *rounds, "eval.problems=8", f"run.root={roots}", registry=registry).train()
    counts = counted(ran.folder)
    assert counts["trajectories"] == 2 * 3 * 16 + 2 * 8, "where all are scored alike, all are replaced"
    found = await planned(registry, "mathchat/tiny", *rounds, "eval.problems=8", previous=ran.folder)
    assert found.run.trajectories == PlannedAmount(pytest.approx(counts["trajectories"]))
    assert found.run.actions.value == pytest.approx(counts["actions"], rel=0.01)


# --- coaches ----------------------------------------------------------------------------------------------------------


async def coached(registry, *settings) -> RunPlan:
    return await planned(registry, "mathchat/tiny", "coach.reference_for=[verifier]", *settings)


async def test_an_llm_coach_is_bounded_by_its_budget_and_needs_no_key(registry):
    options = f"{{model: c-1, budget: 2000, max_tokens: 300, price: {PRICE}}}"
    found = await coached(registry, "coach.use=sealed", f"coach.options={options}")
    work = found.iteration
    assert work.coach_calls == PlannedAmount(128.0, at_most=True)
    assert work.coach_completion_tokens == PlannedAmount(128 * 300.0, at_most=True)
    # The instructions of a role come on top of the evidence.
    assert 128 * 2300 < work.coach_prompt_tokens.value < 128 * 5000
    usd = (work.coach_prompt_tokens.value * 2 + work.coach_completion_tokens.value * 8) / 1e6
    assert work.coach_usd.value == pytest.approx(usd) and work.coach_usd.at_most


async def test_an_unknown_price_is_said_and_never_nothing(registry):
    found = await coached(registry, "coach.use=clerk", "coach.options={model: c-1}")
    assert found.iteration.coach_calls is not None
    assert found.iteration.coach_usd is None and found.run.usd is None


async def test_a_coach_by_trajectory_is_called_once_for_each_kind_of_evidence(registry):
    found = await coached(registry, "coach.use=clerk", "coach.options={model: c-1, batch: trajectory}")
    assert found.iteration.coach_calls == PlannedAmount(2 * 32.0, at_most=True)
    assert found.iteration.verdicts == PlannedAmount(128.0, at_most=True)


async def test_a_coach_in_hindsight_comes_on_top(registry):
    settings = ("coach.hindsight={use: clerk, options: {model: c-1}}", "coach.reward={live: 1.0, after: 0.5}")
    found = await coached(registry, *settings)
    assert [(coach.coach, coach.phase) for coach in found.coaches] == [("mathchat-rules", "live"), ("clerk", "after")]
    assert found.iteration.coach_calls == PlannedAmount(64.0, at_most=True)
    assert found.iteration.verdicts == PlannedAmount(256.0, at_most=True)
    unweighted = await coached(registry, settings[0])
    assert unweighted.iteration.coach_calls == ZERO


async def test_all_members_of_an_ensemble_are_asked(registry):
    member = f"{{use: clerk, options: {CLERK}}}"
    other = member.replace("c-1", "c-2")
    options = f"{{members: [{member}, {other}, {{use: mathchat-rules}}], max_spread: 3, escalate_to: {{use: caller}}}}"
    found = await coached(registry, "coach.use=ensemble", f"coach.options={options}")
    assert found.coaches[0].asks is None and found.iteration.coach_usd is None
    known = options.replace(", max_spread: 3, escalate_to: {use: caller}", "")
    found = await coached(registry, "coach.use=ensemble", f"coach.options={known}")
    assert [one.name for one in found.coaches[0].asks] == ["clerk", "clerk"]
    assert found.iteration.coach_calls == PlannedAmount(256.0, at_most=True)


async def test_an_investigator_is_bounded_by_its_calls_of_each_trajectory(registry):
    options = f"{{model: {{use: clerk, options: {CLERK}}}, calls: 5}}"
    found = await coached(registry, "coach.use=investigator", f"coach.options={options}")
    work = found.iteration
    assert work.coach_calls == PlannedAmount(5 * 32.0, at_most=True)
    assert 50_000 < work.coach_prompt_tokens.value / work.coach_calls.value < 150_000


async def test_an_agent_may_have_another_coach(registry):
    found = await coached(registry, "coach.by_agent={verifier: {use: clerk, options: {model: c-1}}}")
    assert {coach.coach: coach.agents for coach in found.coaches} == {
        "mathchat-rules": ("problem_solver", "code_executor"),
        "clerk": ("verifier",),
    }
    assert found.iteration.coach_calls == PlannedAmount(32.0, at_most=True)


async def test_verdicts_of_evaluation_are_counted_where_it_asks(registry):
    found = await coached(registry, "coach.use=clerk", "coach.options={model: c-1}", "eval.coach=true")
    assert found.evaluation.coach_calls == PlannedAmount(4 * 256.0, at_most=True)


async def test_history_of_a_different_coach_is_ignored(registry, short):
    found = await planned(registry, "mathchat/tiny", "coach.use=clerk", "coach.options={model: c-1}", previous=short)
    calls = found.iteration.coach_calls
    assert calls == found.iteration.actions and found.iteration.coach_completion_tokens.at_most
    assert any("coach.use" in note for note in found.notes)


# --- policies behind an API -------------------------------------------------------------------------------------------


async def test_policies_behind_an_api_are_calls(registry):
    watched = [f"policies.default={{kind: api, use: clerk, model: null, options: {{model: c-2, price: {PRICE}}}}}"]
    found = await planned(registry, "mathchat/tiny", *watched)
    assert (found.iterations, found.evaluations) == (0, 1)
    assert found.run.api_calls == PlannedAmount(4 * 256.0, at_most=True)
    assert found.run.api_prompt_tokens is None and found.run.api_usd is None
    assert found.memory.unknown.startswith("every policy is behind an API")
    assert {agent.model for agent in found.agents} == {"clerk c-2"}


# --- memory -----------------------------------------------------------------------------------------------------------


async def test_a_cluster_has_a_placement(registry):
    machine = Machine(host="one", cpus=8, gpus=4, gpu_bytes=80 * 10**9)
    composed = compose(registry, recipe="mathchat/tiny", overrides=("engine={use: cluster, options: {samplers: 2}}",))
    found = await plan_run(composed, registry, [machine])
    placement = found.memory.details["placement"]
    assert placement["learners"][0]["policies"] == ("problem_solver", "code_executor", "verifier")
    assert len(placement["slots"]) == 4


async def test_a_model_that_is_not_here_leaves_memory_unknown_and_the_rest_known(registry, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    found = await planned(registry, "mathchat/tiny", "policies.default.model=someone/not-here")
    assert "someone/not-here" in found.memory.unknown
    assert found.iteration.trajectories == PlannedAmount(32.0)


# --- what is not known, and what is wrong -----------------------------------------------------------------------------


async def test_a_workflow_that_does_not_say_its_turns_leaves_actions_unknown(registry):
    found = await planned(registry, "doubles/tiny")
    assert found.iteration.trajectories == PlannedAmount(8.0)
    assert found.iteration.actions is None and found.iteration.verdicts is None
    assert found.memory.unknown == "the engine makes no plan"


async def test_tasks_that_are_not_there_leave_evaluations_unknown(registry):
    settings = ("tasks={use: file, options: {path: no/such.jsonl, eval_path: no/such.jsonl}}",)
    found = await planned(registry, "mathchat/tiny", *settings)
    assert found.evaluation.trajectories is None and found.run.actions is None
    assert found.iteration.trajectories == PlannedAmount(32.0)
    assert any("no/such.jsonl" in note for note in found.notes)


async def test_another_engine_or_model_makes_hours_unknown(registry, short):
    found = await planned(registry, "mathchat/tiny", "engine.options.threads=2", previous=short)
    assert found.hours is None and any("engine.options.threads" in note for note in found.notes)


async def test_a_run_of_another_team_is_refused(registry, short):
    with pytest.raises(RunError, match="was played by"):
        await planned(registry, "doubles/tiny", previous=short)


async def test_a_folder_that_is_no_run_is_refused(registry, tmp_path):
    with pytest.raises((RunError, ConfigError)):
        await planned(registry, "doubles/tiny", previous=tmp_path)


# --- amounts ----------------------------------------------------------------------------------------------------------


def test_a_sum_is_unknown_where_a_part_is_and_a_bound_where_a_part_is():
    assert sum_amounts([PlannedAmount(1.0), PlannedAmount(2.0)]) == PlannedAmount(3.0)
    assert sum_amounts([PlannedAmount(1.0), PlannedAmount(2.0, at_most=True)]) == PlannedAmount(3.0, at_most=True)
    assert sum_amounts([PlannedAmount(1.0), None]) is None
    assert multiply_amounts(None, PlannedAmount(2.0)) is None and multiply_amounts(
        None, 0.0
    ) == ZERO == multiply_amounts(ZERO, None)
    work = replace(Workload(), actions=None, verdicts=PlannedAmount(2.0))
    assert (work * 3).verdicts == PlannedAmount(6.0) and (work * 3).actions is None and (work * 0).actions == ZERO


# --- counterfactual rollouts ------------------------------------------------------------------------------------------


async def test_counterfactual_rollouts_are_predicted_from_a_run_without_them(registry, roots, short):
    small = ("train.iterations=1", "train.prompts=4", "eval.problems=2", "credit.counterfactual.use=resample")
    ran = Run.from_recipe("mathchat/tiny", *small, f"run.root={roots}", registry=registry).train()
    found = (await planned(registry, "mathchat/tiny", *small, previous=short)).counterfactual
    bound = (await planned(registry, "mathchat/tiny", *small)).counterfactual
    with RunReader(ran.folder) as reader:
        played = [reader.trajectory(row.id) for row in reader.trajectories.where(split="counterfactual")]
        (report,) = reader.iterations
    steps = [step for one in played for step in one.steps]
    counts = {
        "trajectories": len(played),
        "actions": len(steps),
        "sampled_tokens": sum(len(step.completion.tokens) for step in steps),
        "tool_calls": sum(len(step.results) for step in steps),
    }
    assert report.counterfactuals.rollouts == len(played) and report.seconds["counterfactuals"] > 0
    assert_near(found, counts, share=0.35)  # eight trajectories
    for name in ("trajectories", "actions", "sampled_tokens"):
        assert getattr(bound, name).at_most and getattr(bound, name).value >= counts[name]
    assert bound.tool_calls is None and bound.verdicts == found.verdicts == ZERO


async def test_a_replacement_that_is_given_takes_no_tokens(registry):
    texts = "{problem_solver: '', code_executor: '', verifier: ''}"
    settings = ("credit.counterfactual.use=default", f"credit.counterfactual.default_actions={texts}")
    found = await planned(registry, "mathchat/tiny", *settings, "train.prompts=1", "train.samples=1")
    again = await planned(registry, "mathchat/tiny", "credit.counterfactual.use=resample", *settings[1:],
                          "train.prompts=1", "train.samples=1")  # fmt: skip
    # Solver 1, coder 2, verifier 1: four replaced; of each agent the actions from there on are 1+2+1, 2+3+2 and 1+2+1.
    assert found.counterfactual.actions == again.counterfactual.actions == PlannedAmount(15.0, at_most=True)
    assert again.counterfactual.sampled_tokens == PlannedAmount(4 * 40.0 + 7 * 56.0 + 4 * 16.0, at_most=True)
    assert found.counterfactual.sampled_tokens == PlannedAmount(3 * 40.0 + 5 * 56.0 + 3 * 16.0, at_most=True)
    none = await planned(registry, "mathchat/tiny", "train.prompts=1", "train.samples=1")
    assert none.counterfactual == Workload() and none.iteration.actions == PlannedAmount(4.0, at_most=True)
