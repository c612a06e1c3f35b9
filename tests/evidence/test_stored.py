"""Stored results: written from a run, and read again from the values of every problem alone."""

import json
from pathlib import Path
from types import SimpleNamespace

import dsbench
import msgspec
import numpy as np
import pytest
import stored
from arms import Figures, figures, write
from claims import Claim, judged, restricted
from curves import CHOOSING

from mappa.look.run_results import read_result
from mappa.session.eval_split import in_selection_split
from mappa.sessions import Run
from mappa.testing import load_plugins
from mappa_core import Task
from mappa_core.errors import InputError

RESULTS = Path(__file__).parents[2] / "docs" / "evidence" / "results"
JUDGED = [
    path
    for path in sorted(RESULTS.glob("*.json"))
    if {"problems", "claims"} <= (found := json.loads(path.read_text())).keys() and "pair" in str(found["claims"][:1])
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Runs of two seeds, whose second evaluation is of an updated team."""
    root = tmp_path_factory.mktemp("runs")
    registry = load_plugins()
    words = ("train.iterations=1", "train.prompts=2", "eval.problems=12", "eval.samples=2", f"run.root={root}")
    return [Run.from_recipe("mathchat/tiny", *words, seed=seed, registry=registry).train().folder for seed in (0, 1)]


@pytest.mark.slow
def test_what_is_written_is_read_again_as_the_runs_report_it(folders, tmp_path):
    runs = [
        stored.TrainedRun(arm="tiny", seed=seed, words=("a=1",), folder=folder) for seed, folder in enumerate(folders)
    ]
    stored.write_runs(tmp_path / "found.json", "learns", runs, recipe="mathchat/tiny")
    document = json.loads((tmp_path / "found.json").read_text())
    assert document["study"] == "learns" and document["versions"]["numpy"] == np.__version__
    found = stored.read_results(document)["tiny"]
    for seed, (folder, mine) in enumerate(zip(folders, found, strict=True)):
        own = read_result(folder)
        order = [own.evaluation.problems.index(name) for name in mine.evaluation.problems]
        assert np.array_equal(mine.evaluation.values, own.evaluation.values[order])
        assert mine.evaluation.strata == tuple(own.evaluation.strata[place] for place in order)
        assert (mine.seed, mine.samples, mine.evaluation.iteration) == (seed, 2, 1)
        assert mine.evaluation.interval.mean == document["runs"][seed]["after"]["mean"]
        assert (mine.evaluation.interval.low, mine.evaluation.interval.high) == pytest.approx(
            (own.evaluation.interval.low, own.evaluation.interval.high)
        )


def test_clusters_further_measures_and_lost_samples_are_read_again():
    values = {"p/0": 1.0, "p/1": 0.0, "q/0": 1.0}
    written = {"iteration": 3, "part": "all", "metric": "correct", "values": stored.pack(values)}
    problems = {"p": ["sum", "cluster a"], "q": ["scale", "cluster b"]}
    read = stored.read_evaluation({**written, "figures": {"fair": stored.pack({"q/0": 0.5})}}, problems)
    assert read.problems == ("p", "q") and read.strata == ("sum", "scale")
    assert read.clusters == ("cluster a", "cluster b")
    np.testing.assert_equal(read.values, [[1, 0], [1, np.nan]])
    np.testing.assert_equal(read.figures["fair"], [[np.nan, np.nan], [0.5, np.nan]])


def test_a_simulation_is_written_beside_what_made_it(tmp_path):
    stored.write_simulation(tmp_path / "found.json", "drift", simulations=3)
    found = json.loads((tmp_path / "found.json").read_text())
    assert (found["simulation"], found["simulations"]) == ("drift", 3)
    assert {"commit", "changed", "versions", "cpu", "cores"} <= found.keys()
    write(None, found)  # where no file was named, nothing is written


def part_of(seed, *arms, value=1.0, **changed):
    """A stored part of a study: an evaluation of one problem by run."""
    evaluation = {"iteration": 1, "part": "all", "metric": "correct", "values": stored.pack({f"p{seed}/0": value})}
    runs = [{"arm": arm, "seed": seed, "evaluations": [{**evaluation, "figures": {}}]} for arm in arms]
    made = {"study": "real_model", "quick": False, "recipe": "r", "settings": ["a=1"], "source": "s", "seconds": 2.0}
    problems = stored.pack({f"p{seed}": ["sum", None]})
    rows = [{"arm": arm, "seed": seed} for arm in arms]
    return {**made, "seeds": [seed], "problems": problems, "runs": runs, "rows": rows, "exchanged": [], **changed}


def test_parts_of_a_study_are_joined_into_one_result():
    parts = part_of(3, "verdicts", "outcome"), part_of(2, "verdicts"), part_of(3, "outcome", value=0.0)
    whole = stored.joined(stored.joined(parts[0], parts[1]), parts[2])
    assert (whole["seeds"], whole["seconds"]) == ([2, 3], 6.0)
    assert [(row["arm"], row["seed"]) for row in whole["rows"]] == [("verdicts", 3), ("outcome", 3), ("verdicts", 2)]
    played = stored.read_results(whole)
    assert {arm: [run.seed for run in runs] for arm, runs in played.items()} == {"verdicts": [3, 2], "outcome": [3]}
    (outcome,) = played["outcome"]
    assert outcome.evaluation.values.tolist() == [[0.0]]  # what was run anew


@pytest.mark.parametrize("name", ["source", "settings", "recipe", "quick"])
def test_parts_that_were_made_otherwise_are_not_joined(name):
    with pytest.raises(InputError, match=f"cannot be joined: {name} was"):
        stored.joined(part_of(2, "verdicts"), part_of(3, "verdicts", **{name: "other"}))


def compared(found):
    """The results that claims compare, by arm: at the rate that was chosen, on the tasks that chose none. Of two mixes
    it is the ordinary one."""
    runs = stored.read_results(found)
    if "rates" not in found:
        return runs
    return {
        one["arm"].removeprefix("ordinary, "): [
            reported(run) for run in runs[f"{one['arm']} at {one['rate']:g}"] if run.seed in found["seeds"]
        ]
        for one in found["rates"]
    }


def reported(run):
    return restricted(run, frozenset(name for name in run.tasks if not chooses(name)))


def chooses(name):
    return in_selection_split(Task(id=name, prompt=""), CHOOSING)


@pytest.mark.parametrize("path", JUDGED, ids=lambda path: path.stem)
def test_every_claim_of_a_stored_result_is_judged_alike_from_its_values(path):
    found = json.loads(path.read_text())
    claims = [Claim(**one["claim"]) for one in found["claims"]]
    for mine, then in zip(judged(claims, compared(found)), found["claims"], strict=True):
        assert mine.standing == then["standing"]
        pair = then["pair"]
        for name in ("mean", "low", "high"):
            assert getattr(mine.pair.difference, name) == pytest.approx(pair["difference"][name], abs=1e-9)
        assert mine.pair.p_adjusted == pytest.approx(pair["p_adjusted"], abs=1e-9)


def runs_of(found, arm, seed):
    """Trained runs as scripts get them, from the values of every problem; seed None: of all seeds."""
    problems = stored.unpack(found["problems"])
    runs = [run for run in found["runs"] if run["arm"] == arm and seed in (None, run["seed"])]
    return [
        SimpleNamespace(
            evaluations=[stored.read_evaluation(one, problems) for one in run["evaluations"]],
            summary=SimpleNamespace(seconds=SimpleNamespace(**run["seconds"])),
        )
        for run in runs
    ]


def figures_of(runs):
    """The figures of one run as it reports them, or of several."""
    if len(runs) > 1:
        return figures(runs)
    first, *_, last = runs[0].evaluations
    return Figures(before=first.interval, after=last.interval, gain=last.gain_over(first))


def alike(mine, then):
    return msgspec.to_builtins(mine) == pytest.approx(then)


@pytest.mark.parametrize(("name", "arm"), [("learns", "tiny"), ("controls", None)])
def test_every_row_is_computed_again_from_the_values(name, arm):
    found = json.loads((RESULTS / f"{name}.json").read_text())
    for row in found["rows"]:
        mine = figures_of(runs_of(found, arm or row["arm"], row["seed"]))
        for side in ("before", "after", "gain"):
            assert alike(getattr(mine, side), row["figures"][side])


def test_every_row_of_dsbench_is_computed_again_from_the_values():
    found = json.loads((RESULTS / "dsbench.json").read_text())
    wanted = {(row["arm"], row["seed"], row["measure"]): row for row in found["rows"]}
    for arm, seed in dict.fromkeys((arm, seed) for arm, seed, _ in wanted):
        for mine in dsbench.rows_of(arm, seed, runs_of(found, arm, seed)):
            then = wanted.pop((arm, seed, mine.measure))
            for side in ("before", "after", "gain"):
                assert alike(getattr(mine, side), then[side])
    assert not wanted
