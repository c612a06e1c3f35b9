"""What a coach says of a labelled run, and what it is worth beside answers that need no coach: numbers by hand."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mappa.look.coach_eval.attribution import attribute, grade, value_of_score
from mappa.look.coach_eval.attribution_figures import compute_calibration, compute_figures, share_same
from mappa.look.coach_eval.batch_judge import JudgingLimits
from mappa.look.coach_eval.evaluate_attribution import evaluate_attribution
from mappa.look.coach_eval.labelled_runs import LabelledRun, LabelledRuns, read_benchmark
from mappa.look.coach_eval.naive_answers import COMMON, FIRST, LAST, RANDOM, grade_naive_answers
from mappa.look.coach_eval.published import compute_published
from mappa.look.coach_eval.recorded import RecordedCoach, RecordedOptions
from mappa.rollout.named_coach import NamedCoach
from mappa_core import NOBODY, Completion, ConfigError, Message, Role, Scene, Step, Task, Verdict
from mappa_core.records import Label

BLAME = Path(__file__).parents[4] / "shared" / "data" / "blame"
needs_data = pytest.mark.skipif(not BLAME.is_dir(), reason="the public sets of labelled failures are not here")


def labelled(name="r", *, agents="ab", guilty=None, values=(), stratum="s", question=None, numbers=None) -> LabelledRun:
    """A run of one action per letter of `agents`; `guilty` is (agent, position), `values` {position: value}."""
    steps = tuple(
        Step(
            id=f"{name}/{position}", agent=agent, turn=0, position=position, policy=agent, messages=(),
            reply=Message(role="assistant", content="x"),
            completion=Completion(text="x", prompt_tokens=None, tokens=None, logprobs=None, finish="stop"),
        )
        for position, agent in enumerate(agents)
    )  # fmt: skip
    meta = {"run": name, "messages": list(numbers or range(len(agents)))}
    task = Task(id=question or name, prompt="?", stratum=stratum, meta=meta)
    team = {agent: Role(brief="acts") for agent in agents}
    scenes = tuple(
        Scene(task=task, role=team[step.agent], step=step, team=team, earlier=steps[:place])
        for place, step in enumerate(steps)
    )
    labels = []
    if guilty is not None:
        labels.append(Label(kind="guilt", trajectory=name, agent=guilty[0], step=f"{name}/{guilty[1]}"))
    for position, value in dict(values).items():
        labels.append(Label(kind="quality", trajectory=name, step=f"{name}/{position}", value=float(value)))
    return LabelledRun(name=name, scenes=scenes, labels=tuple(labels))


def scores(*points, blame=None):
    """Verdicts of these points; None is a judge that said nothing. `blame` is of the lowest."""
    lowest = min((point for point in points if point is not None), default=None)
    return [
        Verdict.abstained("-")
        if point is None
        else Verdict.scored(point, "-", blame=blame if point == lowest else None)
        for point in points
    ]


# --- answers ----------------------------------------------------------------------------------------------------------


def test_the_first_lowest_action_is_the_pick_and_its_agent_or_whom_it_blames():
    run = labelled(agents="abc")
    said = attribute(run, scores(5, 1, 1))
    assert (said.agent, said.position, said.confidence) == ("b", 1, 0.9)
    assert attribute(run, scores(5, 1, 2, blame="a")).agent == "a"
    nobody = attribute(run, scores(5, 1, 2, blame=NOBODY))
    assert (nobody.agent, nobody.position, nobody.has_pick) == (NOBODY, None, True)


def test_equal_scores_pick_no_action_and_missing_scores_give_no_answer():
    run = labelled(agents="abc", guilty=("a", 0), values={0: -1, 1: 1})
    level = grade(run, attribute(run, scores(7, 7, 7)))
    assert (level.agent, level.step, level.near) == (0.0, 0.0, 0.0)
    silent = attribute(run, scores(None, None, None))
    assert (silent.agent, silent.has_pick, silent.missing) == (None, False, 3)
    none = grade(run, silent)
    assert (none.agent, none.step, none.near, none.values, none.first_error) == (None, None, None, (None, None), None)


def test_values_are_thirds_of_the_points():
    assert [value_of_score(one) for one in (0, 3.3, 10 / 3, 5, 20 / 3, 6.7, 10)] == [-1, -1, 0, 0, 0, 1, 1]


def test_a_first_error_is_settled_unless_a_verdict_before_it_is_missing():
    run = labelled(agents="abcd", values={1: 1, 2: -1, 3: -1})
    right = attribute(run, scores(None, 9, 1, None))
    assert (right.first_error, right.settled, grade(run, right).first_error) == (2, True, 1.0)
    open_ = attribute(run, scores(0, None, 1, 1))
    assert (open_.settled, grade(run, open_).first_error) == (False, None)
    assert grade(run, open_).values == (None, 1.0, 1.0)
    clean = attribute(run, scores(0, 9, 9, 9))  # the action at 0 has no label
    assert (clean.first_error, clean.settled, grade(run, clean).first_error) == (None, True, 0.0)


def test_within_one_step_is_the_action_before_or_after():
    run = labelled(agents="abcd", guilty=("c", 2))
    near = {
        place: grade(run, attribute(run, scores(*(0 if one == place else 9 for one in range(4))))) for place in range(4)
    }
    assert [near[place].step for place in range(4)] == [0, 0, 1, 0]
    assert [near[place].near for place in range(4)] == [0, 1, 1, 1]


# --- answers without a coach ------------------------------------------------------------------------------------------


def test_naive_answers_by_hand():
    runs = [
        labelled("one", agents="abc", guilty=("a", 0), values={0: -1, 1: 1, 2: 1}),
        labelled("two", agents="ab", guilty=("b", 1), values={0: 1, 1: 0}),
        labelled("three", agents="abb", guilty=("b", 1), values={0: 1, 1: -1}),
    ]
    naive = grade_naive_answers(runs)
    assert [one.agent for one in naive[FIRST]] == [1, 0, 0] and [one.agent for one in naive[LAST]] == [0, 1, 1]
    assert [one.step for one in naive[LAST]] == [0, 1, 0] and [one.near for one in naive[LAST]] == [0, 1, 1]
    assert [one.agent for one in naive[RANDOM]] == [1 / 3, 1 / 2, 1 / 2]
    assert [one.step for one in naive[RANDOM]] == [1 / 3, 1 / 2, 1 / 3]
    assert [one.near for one in naive[RANDOM]] == [2 / 3, 1, 1]
    assert [one.first_error for one in naive[RANDOM]] == [1 / 4, 1 / 3, 1 / 3]
    # Of the other runs: twice b at 1; a at 0 and b at 1, of which a and 0 come first; the same.
    assert [one.agent for one in naive[COMMON]] == [0, 0, 0] and [one.step for one in naive[COMMON]] == [0, 0, 0]
    assert naive["always +1"][1].values == (1, 0) and naive["always 0"][1].values == (0, 1)
    assert [one.first_error for one in naive["always -1"]] == [1, 0, 0]
    assert [one.first_error for one in naive["always +1"]] == [0, 1, 0]
    assert naive["always +1"][0].agent is None


@given(st.lists(st.tuples(st.sampled_from("xy"), st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=8))
def test_the_most_common_answer_is_that_of_other_questions_of_the_stratum(drawn):
    """Against a slow count: for every run over all other runs."""
    runs = [
        labelled(
            f"r{number}", agents="aabb", guilty=("ab"[place // 2], place), stratum=stratum, question=f"q{question}"
        )
        for number, (stratum, place, question) in enumerate(drawn)
    ]
    naive = grade_naive_answers(runs)[COMMON]
    for run, one in zip(runs, naive, strict=True):
        others = [other for other in runs if other.stratum == run.stratum and other.cluster != run.cluster]
        places = Counter(place for other in others for place in other.guilt.positions)
        picked = min(places, key=lambda place: (-places[place], place), default=None)
        assert one.step == float(picked in run.guilt.positions)
        agents = Counter(agent for other in others for agent in other.guilt.agents)
        named = min(agents, key=lambda agent: (-agents[agent], agent), default=None)
        assert one.agent == float(named in run.guilt.agents)


# --- figures ----------------------------------------------------------------------------------------------------------


def figures_of(runs, given):
    grades = [grade(run, attribute(run, verdicts)) for run, verdicts in zip(runs, given, strict=True)]
    found = compute_figures(runs, [grades], grade_naive_answers(runs))
    return {(one.task, one.stratum): one for one in found}


def test_a_missing_answer_is_counted_apart_and_strata_count_alike():
    runs = [
        labelled("one", values={0: 1, 1: -1}, stratum="x"),
        labelled("two", values={0: 1, 1: 1}, stratum="y"),
        labelled("three", values={0: -1, 1: 1}, stratum="y"),
    ]
    found = figures_of(runs, [scores(9, 0), scores(9, None), scores(9, 9)])
    steps = found["step labels", "all"]
    assert (steps.entries, steps.answers) == (6, 5)
    assert steps.of_all.mean == 4 / 6 and steps.of_answered.mean == 4 / 5
    assert found["step labels", "x"].of_all.mean == 1.0 and found["step labels", "y"].of_all.mean == 2 / 4
    assert found["step labels", "mean of the strata"].of_all.mean == 0.75
    assert found["step labels", "mean of the strata"].of_answered.mean == pytest.approx((1 + 2 / 3) / 2)
    error = found["first error", "all"]
    assert (error.entries, error.answers, error.of_all.mean, error.of_answered.mean) == (3, 2, 1 / 3, 1 / 2)
    assert ("guilty agent", "all") not in found
    assert steps.naive["always +1"].mean == 4 / 6 and steps.gain.mean == pytest.approx(
        4 / 6 - steps.naive[steps.best_naive].mean
    )


def test_where_no_question_differs_there_are_no_bounds():
    runs = [labelled(f"{place}{stratum}", guilty=("a", 0), stratum=stratum) for stratum in "xyz" for place in range(4)]
    given = [scores(0, 9) if run.stratum == "x" else scores(9, 0) for run in runs]
    found = figures_of(runs, given)["decisive step", "mean of the strata"]
    assert (found.of_all.mean, found.of_all.low, found.of_all.high) == (pytest.approx(1 / 3), None, None)
    assert (found.best_naive, found.gain.mean, found.gain.low) == (FIRST, pytest.approx(-2 / 3), None)
    # Where every question is right in one of two runs, of four clusters that are alike.
    pairs = [labelled(f"r{one}", guilty=("a", 0), question=f"q{one // 2}") for one in range(8)]
    half = figures_of(pairs, [scores(0, 9), scores(9, 0)] * 4)["decisive step", "all"].of_all
    alike = 4 / (4 + 1.959964**2)
    assert (half.mean, half.low, half.high) == pytest.approx((0.5, 0.5 * alike, 1 - 0.5 * alike))


def test_strata_of_which_one_has_no_answer_have_no_mean_of_answers():
    runs = [labelled(f"{place}{stratum}", guilty=("a", 0), stratum=stratum) for stratum in "xy" for place in range(4)]
    given = [scores(0, 9) if run.stratum == "x" else scores(None, None) for run in runs]
    found = figures_of(runs, given)
    mean = found["decisive step", "mean of the strata"]
    assert (mean.of_all.mean, mean.answers, mean.of_answered) == (0.5, 4, None)
    assert found["decisive step", "y"].of_answered is None and found["decisive step", "all"].of_answered.mean == 1.0


def test_independent_runs_have_wilsons_interval_and_runs_of_one_question_a_wider_one():
    runs = [labelled(f"r{one}", guilty=("a", 0)) for one in range(20)]
    given = [scores(0, 9) if one < 10 else scores(9, 0) for one in range(20)]
    alone = figures_of(runs, given)["decisive step", "all"].of_all
    assert (alone.mean, round(alone.low, 4), round(alone.high, 4)) == (0.5, 0.2993, 0.7007)
    same = [labelled(f"r{one}", guilty=("a", 0), question=f"q{one // 5}") for one in range(20)]
    together = figures_of(same, given)["decisive step", "all"].of_all
    assert together.high - together.low > alone.high - alone.low


def test_confidence_is_held_against_how_often_it_is_right():
    runs = [
        labelled("one", guilty=("a", 0), values={0: -1, 1: 1}),
        labelled("two", guilty=("b", 1), values={0: 1, 1: 0}),
    ]
    given = [scores(2, 8), scores(4, 6)]
    answers = [attribute(run, one) for run, one in zip(runs, given, strict=True)]
    steps, picks = compute_calibration(runs, given, answers)
    # Chances of being right 0.2, 0.8, 0.4, 0.6 against 0, 1, 1, 0.
    assert steps.brier.mean == pytest.approx((0.04 + 0.04 + 0.36 + 0.36) / 4) and steps.constant == 0.25
    assert steps.error == pytest.approx((0.2 + 0.2 + 0.6 + 0.6) / 4)
    # The picks, with 0.8 and 0.6, are right and wrong.
    assert picks.brier.mean == pytest.approx((0.04 + 0.36) / 2) and picks.entries == 2


def test_repeats_agree_where_they_pick_the_same_and_value_the_same():
    run = labelled(agents="ab")
    answers = [[attribute(run, one)] for one in (scores(0, 9), scores(1, 9), scores(9, 0))]
    assert share_same([run], answers).mean == pytest.approx(1 / 3)
    assert share_same([run], answers[:1]) is None


# --- published arithmetic ---------------------------------------------------------------------------------------------
# The expected numbers were printed by the authors' own programs for these inputs: Automated_FA/evaluate.py of Who&When
# (agent 60.00 %, step 60.00 %) and eval/compare.py of AgentProcessBench (step_micro_acc and first_neg1_idx_acc).


def test_who_and_when_by_its_own_arithmetic():
    said = [
        ("Validation_Expert", 1, "DataValidation_Expert", 12),
        ("Planner", 3, "Planner", 3),
        ("Planner", 12, "Coder", 2),
        ("Coder", 0, "Coder", 10),
        ("Coder", 4, None, None),
    ]
    runs, answers = [], []
    for number, (agent, step, named, place) in enumerate(said):
        run = labelled(f"r{number}", agents=["x"] * 13, guilty=(agent, step))
        runs.append(run)
        points = [0 if position == place else 9 for position in range(13)]
        answers.append(attribute(run, scores(*points, blame=named) if named else scores(*[None] * 13)))
    agent, step = compute_published("who-and-when", runs, answers)
    assert (agent.all, step.all) == (0.6, 0.6)


def test_agent_process_bench_by_its_own_arithmetic():
    labels = {"hotpotqa": [{2: 1, 4: -1, 6: -1}, {2: 1}, {2: -1}], "tau2": [{1: 1, 3: 0, 5: -1}, {1: 1, 3: 1}]}
    told = {"hotpotqa": [{2: 1, 4: -1, 6: 1}, {2: None}, {2: 0}], "tau2": [{1: -1, 3: 0, 5: -1}, {1: 1, 3: None}]}
    runs, answers = [], []
    for dataset, rows in labels.items():
        for number, values in enumerate(rows):
            places = dict(enumerate(values.values()))
            run = labelled(f"{dataset}{number}", agents="x" * len(values), values=places, stratum=dataset)
            given = told[dataset][number].values()
            runs.append(run)
            answers.append(attribute(run, scores(*(None if one is None else 5 * (one + 1) for one in given))))
    steps, errors = compute_published("agent-process-bench", runs, answers)
    assert steps.by_stratum == {"hotpotqa": 0.4, "tau2": 0.6} and steps.all == 0.5
    assert errors.by_stratum == {"hotpotqa": pytest.approx(0.6667, abs=1e-4), "tau2": 0.5} and errors.all == 0.6


# --- the public sets --------------------------------------------------------------------------------------------------


def recorded(judge):
    options = RecordedOptions(path=str(BLAME / "agent_process_bench_verdicts.jsonl.gz"), judge=judge)
    return (NamedCoach(name=judge, coach=RecordedCoach(options)),)


@needs_data
@pytest.mark.soak
async def test_the_best_judge_and_the_constants_come_to_what_is_published():
    runs = read_benchmark("agent-process-bench", [BLAME / "agent_process_bench_labels.jsonl"])
    judges = [recorded("Gemini-3-Flash-Preview-Thinking")]
    told = await evaluate_attribution(
        judges, runs, JudgingLimits(concurrency=64, timeout_s=60), benchmark="agent-process-bench"
    )
    found = {(figure.task, figure.stratum): figure for figure in told.coaches[0].figures}
    steps, errors = found["step labels", "mean of the strata"], found["first error", "mean of the strata"]
    assert (told.runs, told.questions, steps.entries) == (1000, 200, 8509)
    assert (f"{steps.of_all.mean:.1%}", f"{errors.of_all.mean:.1%}") == ("80.2%", "65.7%")
    naive = (steps.naive["always +1"].mean, errors.naive["always +1"].mean)
    assert [f"{one:.1%}" for one in naive] == ["61.2%", "38.6%"]
    assert (steps.answers, errors.answers) == (8500, 997)
    by_rule, first = told.coaches[0].published
    assert (f"{by_rule.all:.1%}", f"{by_rule.mean_of_strata:.1%}", f"{first.all:.1%}") == ("81.6%", "80.2%", "65.8%")


@needs_data
async def test_the_most_common_step_of_the_other_runs_is_worth_what_it_is():
    runs = read_benchmark("who-and-when", [BLAME / "who_and_when.jsonl.gz"]).runs
    naive = grade_naive_answers(runs)
    figures = compute_figures(runs, [naive[LAST]], naive)
    step = next(
        figure for figure in figures if (figure.task, figure.stratum) == ("decisive step", "Algorithm-Generated")
    )
    common = step.naive[COMMON]
    assert [f"{100 * one:.1f}" for one in (common.mean, common.low, common.high)] == ["27.0", "20.0", "35.3"]
    assert step.entries == 126


async def test_a_coach_that_asks_a_provider_is_not_paid_for_runs_without_texts(tmp_path):
    (tmp_path / "labels.jsonl").write_text('{"dataset": "x", "query": 0, "sample": 0, "steps": {"2": 1}, "final": 1}\n')
    runs = read_benchmark("agent-process-bench", [tmp_path / "labels.jsonl"])
    assert isinstance(runs, LabelledRuns) and not runs.runs[0].has_text

    class Paid(RecordedCoach):
        providers = ("somebody",)

        def __init__(self): ...

    with pytest.raises(ConfigError, match="1 of 1 runs have labels and no texts, so there is nothing to show to paid"):
        await evaluate_attribution(
            [(NamedCoach(name="paid", coach=Paid()),)], runs, JudgingLimits(concurrency=1, timeout_s=1)
        )


def test_accusations_and_the_ranking_are_graded_apart():
    run = labelled(agents="abcd", guilty=("c", 2))
    verdicts = [replace(Verdict.abstained("-"), suspicion=float(9 - place)) for place in range(4)]
    silent = grade(run, attribute(run, verdicts))
    assert (silent.step, silent.three, silent.accused_step, silent.accused_agent) == (0.0, 1.0, None, None)
    verdicts[2] = replace(Verdict.scored(1, "-", blame="c"), suspicion=0.0, category="invention")
    accusing = grade(run, attribute(run, verdicts))
    assert (accusing.step, accusing.three, accusing.accused_step, accusing.accused_agent) == (0.0, 0.0, 1.0, 1.0)
    environment = replace(Verdict.abstained("-"), blame="environment")
    said = attribute(run, [environment, *verdicts[:3]])
    assert (said.accused, said.accused_agent) == (3, "c")


def test_kinds_of_failure_are_compared_by_what_each_taxonomy_calls_them():
    run = labelled(agents="ab", guilty=("a", 0))
    verdict = replace(Verdict.scored(1, "-", blame="a"), category="disobedience")
    for word, right in (
        ("Instruction Adherence Failure", 1.0), ("1.1", 1.0), ("disobedience", 1.0), ("Invalid Invocation", 0.0),
        ("something else", None),
    ):  # fmt: skip
        named = replace(run, labels=(replace(run.labels[0], category=word),))
        assert grade(named, attribute(named, [verdict, Verdict.abstained("-")])).category == right
