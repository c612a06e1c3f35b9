"""A run with a supervised term: what coaches would rather have seen reaches the engine, and is counted."""

import numpy as np
import pytest

from mappa.runs import RunReader
from mappa.testing import ScriptedEngine, load_plugins
from mappa.training.run import Run
from mappa_core import Coach, Offer, Verdict, hookimpl


class Correcting(Coach):
    """Says what is right: to the doubler its number doubled, to the checker more than it may write."""

    async def score(self, scene):
        if scene.step.agent == "checker":
            return Verdict.scored(3, "wordy", correction="far too many words")
        right = scene.task.reference
        return Verdict.scored(10 if scene.step.reply.content == right else 2, "compared", correction=right)


@pytest.fixture
def learned(plugin, registry, tmp_path, monkeypatch):
    """What the engine was given in the iterations of a run, and what became of the coach's corrections."""
    given = []

    async def update(self, experience, advantages, loss, progress, of=ScriptedEngine.update):
        given.append(experience)
        return await of(self, experience, advantages, loss, progress)

    monkeypatch.setattr(ScriptedEngine, "update", update)

    class Corrected(plugin):
        @hookimpl
        def mappa_coaches(self):
            yield Offer("strict", lambda options: Correcting())

    def play(*settings):
        found = load_plugins(only=("engine", "sandbox"), modules={"doubles": Corrected(tmp_path / "tiny.yaml")})
        words = (f"run.root={tmp_path / 'runs'}", "train.iterations=1", "train.prompts=8", *settings)
        folder = Run.from_recipe("doubles/tiny", *words, registry=found).train().folder
        with RunReader(folder) as reader:
            return given[-1], next(iter(reader.iterations)).corrections, folder

    return play


def test_experience_without_the_supervised_term_has_no_demonstrations(learned):
    experience, corrections, _ = learned()
    assert experience.demonstrations is None
    assert corrections == {}


def test_corrections_are_put_to_the_rows_of_their_actions_and_all_are_counted(learned):
    experience, corrections, _ = learned("train.supervised.weight=0.5")
    given = experience.demonstrations
    wrong = [
        row
        for row, reward in enumerate(experience.reward)
        if experience.agents[experience.agent[row]] == "doubler" and reward < 0.5
    ]
    assert given.row.tolist() == wrong
    assert 0 < len(wrong) < 16
    said = [
        bytes(given.tokens[one:other].astype("uint8"))
        for one, other in zip(given.offsets, given.offsets[1:], strict=False)
    ]
    numbers = [int(experience.tasks[experience.task[row]][1:]) for row in wrong]
    assert said == [f"{2 * number}\n".encode() for number in numbers]
    counts = dict(corrections)
    assert counts.pop("used") == len(wrong)
    assert counts.pop("too_long") == 16
    assert sum(counts.values()) == 16 - len(wrong)


def test_the_truth_can_be_kept_out(learned):
    experience, corrections, _ = learned("train.supervised.weight=0.5", "train.supervised.truth=false")
    assert len(experience.demonstrations.row) == 0
    assert corrections["used"] == 0


def test_demonstrations_of_a_skipped_step_are_stored_with_its_rows(learned):
    settings = ("engine.use=paced", "engine.options.skips=[1]", "train.max_skipped=9")
    experience, _, folder = learned("train.supervised.weight=0.5", *settings)
    with np.load(folder / "skipped" / "000001-doubler.npz") as kept:
        assert len(kept["demonstrations.row"]) == len(experience.demonstrations.row) > 0
        assert kept["demonstrations.tokens"].tolist() == experience.demonstrations.tokens.tolist()
        rows = [str(kept["steps"][row]) for row in kept["demonstrations.row"]]
    assert rows == [experience.steps[row] for row in experience.demonstrations.row]
