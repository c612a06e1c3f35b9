"""The machinery of the studies: every script from its command line to its results, over runs that a fake of the process
of a run puts in their places. They are copies of one real run of two iterations, so that all arms are alike."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import alignment
import bias
import bug_offers
import curves
import distill
import failing_coach
import failing_offers
import hindsight
import hindsight_offers
import lenient_offers
import noisy_coach
import noisy_offers
import numpy as np
import opponents
import process_vs_outcome
import pytest
import real_model
import reference_bugs
import sharing
import specialists
import stored
import study
import torch
import warm_starts
from click.testing import CliRunner
from rates import at_best_rates

from mappa.sessions import Run
from mappa.store.summary import EvalSummary, SelectionSummary, Summary
from mappa.testing import load_plugins

OFFERS = {
    "lenient": lenient_offers, "failing": failing_offers, "noisy": noisy_offers, "looking_back": hindsight_offers,
    "bugs": bug_offers,
}  # fmt: skip
TINY = ("train.iterations=2", "train.prompts=8", "eval.problems=8", "train.warmup_iterations=0")


@pytest.fixture(scope="module")
def registry():
    return load_plugins(modules=OFFERS)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, registry):
    """A real run."""
    words = (*TINY, f"run.root={tmp_path_factory.mktemp('runs')}")
    return Run.from_recipe("mathchat/tiny", *words, registry=registry).train().folder


@pytest.fixture
def started(trained, monkeypatch):
    """The runs that were started, each of which was `trained` in an instant."""
    started = []

    async def launch(arguments, log):
        shutil.copytree(trained, log.parents[1] / log.stem)
        arm, _, seed = log.stem.rpartition("-s")
        started.append((arm, int(seed)))
        log.touch()
        return 0

    monkeypatch.setattr(study, "launch_locally", launch)
    return started


@pytest.mark.parametrize(
    ("script", "runs", "claims"),
    [
        pytest.param(failing_coach, 7, 5, marks=pytest.mark.slow),
        pytest.param(noisy_coach, 6, 3, marks=pytest.mark.soak),
        pytest.param(reference_bugs, 4, 3, marks=pytest.mark.soak),
        pytest.param(bias, 10, 6, marks=pytest.mark.soak),
        pytest.param(hindsight, 3, 2, marks=pytest.mark.soak),
        pytest.param(distill, 4, 2, marks=pytest.mark.soak),
        pytest.param(sharing, 3, 2, marks=pytest.mark.soak),
        pytest.param(specialists, 4, 6, marks=pytest.mark.soak),
        pytest.param(process_vs_outcome, 4, 1, marks=pytest.mark.soak),
        pytest.param(opponents, 10, 4, marks=pytest.mark.soak),
        pytest.param(warm_starts, 6, 3, marks=pytest.mark.soak),
        (alignment, 1, 3),
        (real_model, 6, 4),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_study_goes_from_its_command_line_to_its_results(script, runs, claims, started, tmp_path, monkeypatch):
    taught: list[tuple[str, ...]] = []
    monkeypatch.setattr(process_vs_outcome, "RATES", (5e-4,))
    monkeypatch.setattr(sharing, "RATES", dict.fromkeys(sharing.ARMS, (5e-4,)))
    monkeypatch.setattr(sharing, "selected", lambda runs: 0.5)  # the run that is copied chose no checkpoint
    monkeypatch.setattr(real_model, "_mappa", lambda *words: taught.append(words))
    monkeypatch.setattr(real_model, "play_exchanged", lambda study, trained, one, other: trained)
    monkeypatch.setattr(alignment, "ARMS", {"process": (), "outcome": ()})  # outcomes of so few rollouts may be equal
    monkeypatch.setattr(curves, "RESAMPLES", 50)
    done = CliRunner().invoke(script.main, ["--quick", "--seeds", "0,1", "eval.problems=8", f"run.root={tmp_path}"])
    assert done.exit_code == 0, done.output
    assert "shows nothing" in done.output
    assert len(started) == runs and {seed for _, seed in started} <= {0, opponents.CHOOSER}
    if script is real_model:
        (examples, start) = taught
        folder = Path(start[start.index("--examples") + 1])
        assert str(folder) in examples and folder.is_relative_to(tmp_path)
        # The last word on it holds: an iteration of a warm start is an epoch.
        assert [word for word in start if word.startswith("train.iterations=")][-1] == "train.iterations=1"
    (folder,) = (tmp_path / "evidence").iterdir()
    found = json.loads((folder / "quick.json").read_text())
    assert (found["study"], found["quick"], found["seeds"]) == (script.__name__, True, [0])
    assert found["versions"]["torch"] == torch.__version__ and found["cpu"] and found["seconds"] > 0
    assert len({run["folder"] for run in found["runs"]}) == runs
    assert all(run["after"]["mean"] is not None and run["seconds"]["wall"] > 0 for run in found["runs"])
    for run in found["runs"]:
        for name, evaluation in (("before", run["evaluations"][0]), ("after", run["evaluations"][-1])):
            values = list(stored.unpack(evaluation["values"]).values())
            assert sum(values) / len(values) == pytest.approx(run[name]["mean"])
    if script is alignment:
        assert all(cell["process"] == cell["outcome"] and cell["limit"] > 0.999 for cell in found["cells"])
    # One seed settles nothing.
    assert [claim["standing"] for claim in found["claims"]] == ["open"] * claims


def test_a_failure_is_of_who_was_first_to_earn_less_than_half():
    def played(*points):
        steps = [SimpleNamespace(id=str(place), agent=agent) for place, agent in enumerate(specialists.AGENTS)]
        verdicts = [SimpleNamespace(step=str(place), score=score) for place, score in enumerate(points)]
        return SimpleNamespace(steps=steps, verdicts=verdicts)

    plays = [
        (0, {"correct": 1.0}, played(1.0, 1.0, 1.0)),  # right all the same
        (0, {"correct": 0.0}, played(5.0, 4.9, 1.0)),
        (1, {"correct": 0.0}, played(None, 9.0, 2.0)),  # nobody judged the plan
        (1, {"correct": 0.0}, played(9.0, 9.0, 9.0)),
        (1, None, played(1.0)),  # lost
        (2, {"correct": 0.0}, played(1.0)),  # later
    ]
    rows = [
        SimpleNamespace(id=place, iteration=when, outcome=outcome) for place, (when, outcome, _) in enumerate(plays)
    ]
    reader = SimpleNamespace(
        trajectories=SimpleNamespace(where=lambda split: rows), trajectory=lambda place: plays[place][2]
    )
    found = real_model.count_faults(reader, range(2))
    assert found == {"right": 1, "code_executor": 1, "verifier": 1, "nobody": 1}


def test_each_arm_runs_at_the_rate_that_was_best_where_it_is_chosen():
    class Recorded:
        asked = study.Asked(quick=False, seeds=(0, 1, 2), jobs=1, out=None, settings=())
        calls: ClassVar = []

        def train(self, arms, seeds):
            self.calls.append((arms, seeds))
            return {name: tuple(Path(f"{name}/{seed}") for seed in seeds) for name in arms}

    accuracy = {"a at 1": 0.2, "a at 2": 0.7, "b at 1": 0.5, "b at 3": 0.4}
    chosen = at_best_rates(
        Recorded(), {"a": ("x=1",), "b": ()}, {"a": (1, 2), "b": (1, 3)}, lambda runs: accuracy[runs[0].parts[0]]
    )
    (first, some), (last, every) = Recorded.calls
    assert first["a at 2"] == ("x=1", "train.learning_rate=2") and set(first) == set(accuracy)
    assert (some, every) == ((0,), (0, 1, 2))
    assert list(last) == ["a at 2", "b at 1"]
    assert [one.rate for one in chosen] == [2, 1]
    assert chosen[0].tried == {1: 0.2, 2: 0.7}
    assert [run.name for run in chosen[0].runs] == ["0", "1", "2"]
    at_best_rates(Recorded(), {"a": ()}, {"a": (1, 2)}, lambda runs: accuracy[runs[0].parts[0]], choosing=(9,))
    assert [seeds for _, seeds in Recorded.calls[2:]] == [(9,), (0, 1, 2)]


def test_exchanged_agents_play_with_each_others_weights_and_the_third_with_its_own(monkeypatch):
    played = []
    monkeypatch.setattr(specialists, "_play", lambda study, seed, weights: played.append((seed, weights)))
    asked = study.Asked(quick=False, seeds=(3, 4), jobs=1, out=None, settings=())
    specialists.play_exchanged(SimpleNamespace(asked=asked), (Path("a"), Path("b")), "problem_solver", "verifier")
    solver, coder, verifier = specialists.AGENTS
    assert played == [
        (seed, {solver: f"{run}/{verifier}@last", verifier: f"{run}/{solver}@last", coder: f"{run}/{coder}@last"})
        for seed, run in ((3, "a"), (4, "b"))
    ]


def test_shared_weights_are_chosen_by_what_their_checkpoints_came_to(monkeypatch):
    def summary(run):
        selection = SelectionSummary(n=4, evaluations=3, iteration=2, value={"a": 0.25, "b": 0.75}[run.name])
        own = EvalSummary(metric="correct", n=4, selection=selection)
        return Summary(plugin="p", recipe="r", recipe_hash="h", seed=0, status="done", eval=own)

    monkeypatch.setattr(sharing, "read_summary", summary)
    assert sharing.selected([Path("a"), Path("b")]) == 0.5


def test_a_run_that_was_gone_on_with_has_each_evaluation_once(trained, tmp_path, registry):
    folder = shutil.copytree(trained, tmp_path / "again")
    before = [(one.iteration, one.problems) for one in curves.evaluations(folder, choosing=False)]
    Run.resume(folder, registry=registry).train()
    assert [(one.iteration, one.problems) for one in curves.evaluations(folder, choosing=False)] == before
    assert [iteration for iteration, _ in before] == [0, 2]


def asked(tmp_path, *settings, seeds=(0,)):
    settings = (*study.QUICK, f"run.root={tmp_path}", *settings)
    return study.Asked(quick=True, seeds=seeds, jobs=1, out=None, settings=settings)


def test_what_is_done_is_not_trained_again_and_other_settings_lie_elsewhere(started, tmp_path):
    arms = {"a": (), "b": ("train.samples=1",)}
    first = study.Study(name="one", asked=asked(tmp_path))
    first.train(arms, (0,))
    again = study.Study(name="one", asked=asked(tmp_path))
    found = again.train({**arms, "c": ("train.samples=3",)}, (0, 1))
    assert again.folder == first.folder
    assert len(started) == len(set(started)) == 6
    assert [path.name[-3:] for path in found["b"]] == ["-s0", "-s1"]
    other = study.Study(name="one", asked=asked(tmp_path, "train.samples=3"))
    assert other.folder != first.folder


def test_a_run_that_fails_is_told_and_can_be_tried_again(started, tmp_path, monkeypatch):
    good = study.launch_locally

    async def bad(arguments, log):
        log.write_text("Error: no room\n")
        return 2

    one = study.Study(name="one", asked=asked(tmp_path))
    monkeypatch.setattr(study, "launch_locally", bad)
    with pytest.raises(study.Failed, match=r"1 of 1 runs did not come to their end:\n.*: Error: no room"):
        one.train({"a": ()}, (0,))
    monkeypatch.setattr(study, "launch_locally", good)
    one.train({"b": ("train.samples=1",)}, (0,))
    assert [arm[0] for arm, _ in started] == ["b"]  # what failed was not asked for
    assert one.train({"a": ()}, (0,))["a"][0].is_dir()


def test_a_process_that_is_started_finds_the_offers_and_leaves_no_trace(tmp_path, monkeypatch):
    program = (
        "from mappa_core.plugins import load_plugins\nregistry = load_plugins()\n"
        "[registry.offer(*one) for one in (('coaches', 'failing'), ('coaches', 'lenient'), ('coaches', 'looking_back'),"
        " ('engines', 'wrong_prompt'), ('estimators', 'whitened_twice'))]"
    )
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    with study.installed(tmp_path / "plugins", OFFERS):
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert study.os.environ["PYTHONPATH"] == "/elsewhere"


def test_input_that_cannot_be_used_ends_a_study_with_a_message(tmp_path):
    done = CliRunner().invoke(bias.main, ["--quick", f"run.root={tmp_path}", "train.nonsense=1"])
    assert done.exit_code == 2 and "train.nonsense" in done.output
    assert not (tmp_path / "evidence").exists()


def test_gradients_are_those_of_the_rows_log_probabilities(trained, registry):
    """Against autograd row by row: where nothing moved yet, the gradient of the loss is that of -A log p."""
    composed = alignment.restore_trusted(registry, trained / "config.yaml")
    gradients = alignment.Gradients(composed.config, registry)
    (trajectories, _) = alignment.batches(trained, 2)
    shapers = {"process": alignment._shapers(trained, (), registry)}
    taken = {}
    gradients._estimator = _kept(gradients._estimator, taken)
    found = gradients.of(trajectories[:5], shapers)["process"]
    experience, advantages = taken["experience"], taken["advantages"]
    for policy in gradients._policies[:2]:
        own = np.flatnonzero(experience.policy == experience.policies.index(policy.name))
        total = 0.0
        policy.model.zero_grad()
        for row in own:
            prompt = experience.prompt_tokens[slice(*experience.prompt_offsets[row : row + 2])]
            span = slice(*experience.offsets[row : row + 2])
            ids = torch.from_numpy(np.concatenate([prompt, experience.tokens[span]])).long()
            logits = policy.model(input_ids=ids[None]).logits[0, len(prompt) - 1 : -1]
            logprobs = torch.log_softmax(logits, -1).gather(1, ids[len(prompt) :, None])[:, 0]
            total = total - (torch.from_numpy(advantages[span]) * logprobs).sum()
        (total / experience.lengths[own].sum()).backward()
        expected = torch.cat([one.grad.flatten() for one in policy.model.parameters() if one.grad is not None])
        np.testing.assert_allclose(found[policy.name], expected.numpy(), rtol=0, atol=1e-6)


def _kept(estimator, taken):
    def keeping(experience, state):
        advantages, state = estimator(experience, state)
        taken.update(experience=experience, advantages=advantages.advantages)
        return advantages, state

    return keeping


def test_a_cosine_of_nothing_is_not_a_number():
    one = np.array([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]], np.float32)
    found = alignment.cosine(one, np.array([1.0, 0.0], np.float32))
    assert found[:2] == pytest.approx([1, 0.5**0.5])
    assert np.isnan(found[2])


def test_an_agent_counts_as_claimed_where_all_of_the_interval_is_above_zero():
    def cosines(*pairs):
        return [
            alignment.Cosines(agent="a", seed=seed, process=one, outcome=other, limit=0.9, halves=0.8, silent=0)
            for seed, (one, other) in enumerate(pairs)
        ]

    assert alignment.Row.of("a", cosines((0.5, 0.2), (0.5, 0.21), (0.52, 0.2))).standing == "held"
    assert alignment.Row.of("a", cosines((0.5, 0.2), (0.2, 0.5), (0.4, 0.2))).standing == "not held"
    assert alignment.Row.of("a", cosines((0.5, 0.2))).standing == "open"
