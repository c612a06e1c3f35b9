"""A coach with a soft spot, and figures that are told by kind of task."""

import math
from pathlib import Path

import debias
import lenient_offers
import numpy as np
import pytest

from mappa_core.evaluation.heldout import Evaluation
from mappa_core.plugins import load
from mappa_core.protocols import Coach
from mappa_core.records import Completion, Message, Role, Scene, Step, Task, Verdict
from mappa_core.store.summary import Interval, Seconds, Summary
from mappa_core.training import Trained


class Rules(Coach):
    def __init__(self, verdict):
        self.verdict, self.closed = verdict, False

    async def score(self, scene):
        return self.verdict

    async def close(self):
        self.closed = True


def scene(strata):
    completion = Completion(text="", prompt_tokens=None, tokens=None, logprobs=None, finish="stop")
    step = Step(
        id="s",
        agent="problem_solver",
        turn=0,
        position=0,
        policy="p",
        messages=(),
        reply=Message(role="assistant", content=""),
        completion=completion,
        strata=strata,
    )
    return Scene(task=Task(id="t", prompt="?"), role=Role(brief="plans"), step=step)


@pytest.mark.parametrize(
    ("points", "strata", "score"),
    [
        (10, {"plan": "sum"}, 8.5),
        (10, {"plan": "scale"}, 7.0),
        (3, {"plan": "sum"}, 7.1),
        (3, {"plan": "scale"}, 5.6),
        (0, {}, 5.0),
    ],
)
async def test_the_lenient_coach_likes_what_a_plan_looks_like_more_than_its_being_right(points, strata, score):
    coach = lenient_offers.Lenient(Rules(Verdict.scored(points, "why", blame="nobody")))
    verdict = await coach.score(scene(strata))
    assert verdict.score == pytest.approx(score)
    assert (verdict.reasoning, verdict.blame) == ("why", "nobody")


async def test_the_lenient_coach_makes_up_no_number():
    rules = Rules(Verdict.abstained("prose"))
    coach = lenient_offers.Lenient(rules)
    assert await coach.score(scene({"plan": "sum"})) is rules.verdict
    await coach.close()
    assert rules.closed


def test_the_lenient_coach_is_an_offer():
    registry = load(only=("mathchat",), modules={"lenient": lenient_offers})
    assert isinstance(registry.build("coaches", "lenient"), lenient_offers.Lenient)


def trained(before, after):
    """A run over four tasks, the first two of kind `sum`."""
    evaluations = tuple(
        Evaluation(
            iteration=iteration,
            metric="correct",
            problems=("a", "b", "c", "d"),
            strata=("sum", "sum", "scale", "scale"),
            values=np.array(values, float)[:, None],
            failures={},
        )
        for iteration, values in ((0, before), (9, after))
    )
    seconds = Seconds(wall=10.0, cpu=9.0)
    summary = Summary(plugin="p", recipe="r", recipe_hash="", seed=0, status="done", seconds=seconds)
    return Trained(folder=Path(), summary=summary, evaluations=evaluations)


def test_a_row_tells_both_kinds_of_tasks_apart():
    row = debias.Row.of("as it is", 3, [trained([0, 0, 0, 1], [1, 1, 0, 1])])
    means = [one.mean for one in (row.before, row.after, row.favoured, row.disfavoured)]
    assert means == pytest.approx([0.25, 0.75, 1, 0.5])
    assert row.cells[:2] == ("as it is", "3") and row.cells[-1] == "10"


def test_seeds_share_their_problems():
    alike = debias.Row.of("x", None, [trained([0] * 4, [1, 0, 0, 1])] * 3)
    assert alike.after.mean == 0.5 and alike.seconds == 30
    assert alike.after.high - alike.after.low > 0.9  # four problems, not twelve
    assert alike.cells[1] == "all"


def row(arm, disfavoured):
    same = Interval(mean=0.5)
    return debias.Row(
        arm=arm,
        seed=None,
        before=same,
        after=same,
        favoured=same,
        disfavoured=Interval(mean=disfavoured),
        seconds=1.0,
    )


@pytest.mark.parametrize(("plain", "corrected", "ratio"), [(0.1, 0.7, 7.0), (0.0, 0.5, math.inf)])
def test_the_ratio_is_of_the_disfavoured_tasks_over_all_seeds(plain, corrected, ratio):
    assert debias.ratio([row("as it is", plain), row("corrected", corrected)]) == pytest.approx(ratio)


def test_where_nobody_solves_any_there_is_no_ratio():
    assert math.isnan(debias.ratio([row("as it is", 0.0), row("corrected", 0.0)]))
