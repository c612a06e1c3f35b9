"""A run whose estimator has a teacher, which is scored after the prompts that it reads, for the agents it teaches."""

from dataclasses import replace

import numpy as np
import pytest

from mappa.runs import RunReader
from mappa.testing import ScriptedEngine, ScriptedSampler, load_plugins
from mappa.training.run import Run
from mappa_core import ConfigError

CHECKER = "estimator.by_agent={checker: {use: distill, options: {template: ' [{reason}]'}}}"


@pytest.fixture
def play(plugin, registry, tmp_path, monkeypatch):
    """Plays a run over an engine that finds every token less likely by a nat for every token of its prompt."""
    learned = []

    async def score(self, experience, *, reference=True):
        lengths = np.diff(experience.prompt_offsets)[experience.row_of_token]
        return replace(experience, old_logprobs=-lengths.astype(np.float32))

    async def update(self, experience, advantages, loss, progress, of=ScriptedEngine.update):
        learned.append((experience, advantages))
        return await of(self, experience, advantages, loss, progress)

    monkeypatch.setattr(ScriptedEngine, "score", score)
    monkeypatch.setattr(ScriptedEngine, "update", update)

    def run(*settings):
        found = load_plugins(only=("engine", "sandbox"), modules={"doubles": plugin(tmp_path / "tiny.yaml")})
        words = (f"run.root={tmp_path / 'runs'}", "train.iterations=1", "train.prompts=3", *settings)
        folder = Run.from_recipe("doubles/tiny", *words, registry=found).train().folder
        with RunReader(folder) as reader:
            return *learned[-1], next(iter(reader.iterations)).policies

    return run


def test_teacher_scores_only_rows_of_its_agents_after_the_reason(play):
    experience, advantages, policies = play(CHECKER)
    checked = experience.agent[experience.row_of_token] == experience.agents.index("checker")
    assert np.isnan(experience.teacher_logprobs[~checked]).all()
    longer = -len(" [repeats]")
    assert (experience.teacher_logprobs - experience.old_logprobs)[checked].tolist() == [longer] * checked.sum()
    assert set(advantages.advantages[checked]) == {longer}
    assert policies["checker"] == policies["checker"] | {"teacher_rows": 6.0, "teacher_kl": -longer}
    assert policies["doubler"]["teacher_rows"] == 0.0
    assert "teacher_kl" not in policies["doubler"]


def test_an_engine_that_believes_its_sampler_scores_a_teacher_all_the_same(play, monkeypatch):
    """What the sampler knows of an action is not what its teacher says of it, even where both are one policy: an engine
    that compares them on a few rows would take the one for the other where the reason moves these rows little."""

    async def score(self, experience, *, reference=True, of=ScriptedEngine.score):
        scored = await of(self, experience, reference=reference)
        known = np.isfinite(experience.logprobs)
        return replace(scored, old_logprobs=np.where(known, experience.logprobs, scored.old_logprobs))

    monkeypatch.setattr(ScriptedEngine, "score", score)
    experience, _, _ = play(CHECKER)
    checked = experience.agent[experience.row_of_token] == experience.agents.index("checker")
    longer = np.diff(experience.prompt_offsets)[experience.row_of_token][checked] + len(" [repeats]")
    assert experience.teacher_logprobs[checked].tolist() == (-longer).tolist()
    assert np.array_equal(experience.old_logprobs, experience.logprobs)


def test_an_action_that_its_teacher_cannot_read_to_the_end_has_none(play, monkeypatch):
    """A model asked for positions that it never saw answers something all the same."""
    whole, *_ = play(CHECKER)
    checked = np.flatnonzero(whole.agent == whole.agents.index("checker"))
    longest = (np.diff(whole.prompt_offsets) + whole.lengths)[checked] + len(" [repeats]")
    assert len(set(longest)) > 1
    monkeypatch.setattr(ScriptedSampler, "window", int(longest.max()) - 1)
    experience, _, policies = play(CHECKER)
    told = np.isfinite(experience.teacher_logprobs)[experience.offsets[checked]]
    assert told.tolist() == (longest < longest.max()).tolist()
    assert policies["checker"]["teacher_rows"] == told.sum()


def test_run_without_a_teacher_scores_no_rows_twice(play):
    experience, _, policies = play()
    assert experience.teacher_logprobs is None
    assert "teacher_rows" not in policies["doubler"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("{}", "the coach of doubler sees the reference answer"),
        (
            "{reason: false, policy: mentor}",
            "the teacher 'mentor' is no policy of this run; those are doubler, checker",
        ),
    ],
)
def test_invalid_teachers_are_refused_before_anything_is_played(play, tmp_path, options, says):
    with pytest.raises(ConfigError, match=says):
        play(f"estimator={{use: distill, options: {options}}}")
    assert not (tmp_path / "runs").exists()


def test_a_teacher_that_the_engine_cannot_score_is_refused_before_it_opens(plugin, registry, tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr(ScriptedEngine, "can_score", lambda engine, policy: policy.trained)
    monkeypatch.setattr(ScriptedEngine, "open", lambda *arguments, **named: opened.append(named))
    settings = (
        f"run.root={tmp_path / 'runs'}",
        "policies.mentor={kind: frozen, model: mentor}",
        "coach.reference_for=[]",
        "estimator={use: distill, options: {reason: false, policy: mentor}}",
    )
    says = "engine.use=scripted cannot score tokens by the teacher 'mentor', which is frozen"
    with pytest.raises(ConfigError, match=says):
        Run.from_recipe("doubles/tiny", *settings, registry=registry).train()
    assert not opened and not (tmp_path / "runs").exists()
    with pytest.raises(ConfigError, match=says):
        Run.from_recipe("doubles/tiny", *settings, registry=registry).check()
