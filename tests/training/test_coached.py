"""The loop and its coaches: hindsight, caps on spending, drift, and who is told where data goes."""

from dataclasses import dataclass, replace

import pytest

from mappa_core.errors import ConfigError, GuardStop
from mappa_core.hookspecs import Offer, hookimpl
from mappa_core.plugins import load_plugins
from mappa_core.protocols import Coach, Provider
from mappa_core.records import Task, Usage, Verdict
from mappa_core.runs import RunReader
from mappa_core.store.checkpoint import Checkpoints
from mappa_core.training import Run
from mappa_core.training.listener import NullListener


@dataclass
class DearOptions:
    usd: float = 0.1
    even: float = 5.0
    """Points for even tasks; odd ones get 5."""


class Dear(Coach):
    """Every verdict costs the same, and even tasks may be liked better."""

    providers = (Provider(name="dear", model="d-1", host="dear.example", priced=True),)

    def __init__(self, options: DearOptions) -> None:
        self._options = options
        self.asked = 0

    async def score(self, scene):
        self.asked += 1
        points = self._options.even if scene.task.stratum == "even" else 5.0
        if scene.outcome is not None:
            points = 1.0 + scene.outcome["correct"]
        usage = Usage(calls=1, prompt_tokens=100, completion_tokens=10, usd=self._options.usd)
        return replace(Verdict.scored(points, "seen"), usage=usage)


class Many:
    """Forty tasks of two strata."""

    def __init__(self, options) -> None:
        pass

    def load(self, split):
        strata = ("even", "odd")
        return [Task(id=f"n{n}", prompt=str(n), reference="?", stratum=strata[n % 2]) for n in range(40)]


class Making:
    def __init__(self) -> None:
        self.made: list[Dear] = []

    def __call__(self, options: DearOptions) -> Dear:
        self.made.append(Dear(options))
        return self.made[-1]


class Dears:
    def __init__(self) -> None:
        self.making = Making()

    @hookimpl
    def mappa_tasks(self):
        yield Offer("many", Many)

    @hookimpl
    def mappa_coaches(self):
        yield Offer("dear", self.making, DearOptions)


@pytest.fixture
def dears():
    return Dears()


@pytest.fixture
def start(registry, dears, tmp_path):
    """A run of the doubles, coached by `dear`."""
    both = replace(
        registry,
        plugins={**registry.plugins, **load_plugins(only=("engine", "sandbox"), modules={"dears": dears}).plugins},
    )

    def make(*settings, name="run", folder=None):
        words = ("coach.use=dear", f"run.root={tmp_path / 'runs'}", f"run.name={name}", *settings)
        if folder is not None:
            return Run.resume(folder, *settings, registry=both)
        return Run.from_recipe("doubles/tiny", *words, registry=both)

    return make


def verdicts(folder):
    with RunReader(folder) as reader:
        rows = list(reader.trajectories.where(split="train"))
        return [verdict for row in rows for verdict in reader.trajectory(row.id).verdicts]


def test_hindsight_becomes_the_reward_and_live_verdicts_are_then_not_asked_for(start, dears):
    trained = start("coach.reward={live: 0, after: 1}", "coach.hindsight={use: dear}", "train.iterations=2").train()
    found = verdicts(trained.folder)
    assert {verdict.phase for verdict in found} == {"after"} and {verdict.score for verdict in found} <= {1.0, 2.0}
    assert len(dears.making.made) == 1 and dears.making.made[0].asked == len(found) == 16


def test_one_coach_of_one_setting_is_built_once_and_another_setting_is_another(start, dears):
    start("coach.by_agent={checker: {use: dear}}", "train.iterations=1").train()
    assert len(dears.making.made) == 1
    start("coach.by_agent={checker: {use: dear, options: {usd: 1}}}", "train.iterations=1", name="two").train()
    assert len(dears.making.made) == 3


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("coach.reward={live: 1, after: 1}", r"coach.reward.after .*coach.hindsight.use"),
        ("coach.reward={live: 1, again: 1}", r"coach.reward.again: .*recoach"),
    ],
)
def test_a_phase_that_nobody_judges_cannot_be_the_reward(start, setting, said):
    with pytest.raises(ConfigError, match=said):
        start(setting).check()


def test_at_the_cap_the_run_stops_with_a_checkpoint_and_goes_on_with_a_higher_one(start, dears, tmp_path):
    run = start("coach.spend_usd=1.0")
    with pytest.raises(GuardStop, match=r"coach.spend_usd=1.*higher cap(.|\n)*checkpoint was written"):
        run.train()
    folder = tmp_path / "runs" / "run"
    assert Checkpoints(folder / "checkpoints").iterations() == (1,)
    paid = [verdict for verdict in verdicts(folder) if verdict.status == "scored"]
    assert dears.making.made[-1].asked == len(paid) and 10 <= len(paid) < 16
    with pytest.raises(GuardStop, match=r"coach\.spend_usd=1"):
        start(folder=folder).train()
    assert dears.making.made[-1].asked == 0
    trained = start("coach.spend_usd=100", folder=folder).train()
    scored = [verdict for verdict in verdicts(folder) if verdict.status == "scored"]
    assert trained.summary.status == "done"
    assert dears.making.made[-1].asked == len(scored) - len(paid) == 32 - len(paid)
    assert trained.summary.coach.usd == pytest.approx(3.2)


def test_usage_is_counted_by_agent_and_by_coach(start):
    trained = start("train.iterations=1").train()
    with RunReader(trained.folder) as reader:
        (report,) = reader.iterations
        (said,) = reader.events("providers")
    counts = report.coach
    assert counts.total.usd == pytest.approx(0.8) and counts.total.usage.calls == 8
    assert counts.by_agent["checker"].usd == pytest.approx(0.4)
    assert counts.by_agent["doubler"].usage.prompt_tokens == 400
    assert counts.by_coach["dear"].verdicts == 8
    assert counts.total.usage.cached_tokens is None and "coach/cached_tokens" not in report.metrics()
    assert said.body["providers"] == [{"name": "dear", "model": "d-1", "host": "dear.example", "priced": True}]


def test_the_listener_hears_first_to_whom_data_will_be_sent(start):
    heard = []

    class Ears(NullListener):
        def on_providers(self, providers):
            heard.append([provider.host for provider in providers])

        def on_rollouts_start(self, split, done, rollouts):
            heard.append(split)

    start("train.iterations=1").train(Ears())
    assert heard[:2] == [["dear.example"], "eval"]


LIKES_EVEN = (
    "tasks={use: many}",
    "coach.options.even=9",
    "train.iterations=8",
    "train.prompts=10",
    "checkpoint.every=1",
    "eval.problems=1",
)


def test_an_alarm_of_drift_is_told_kept_and_answered_with_a_pause(start, tmp_path):
    with pytest.raises(GuardStop, match=r"the coach drifts:\n.*even(.|\n)*acknowledged(.|\n)*checkpoint"):
        start(*LIKES_EVEN, "coach.drift.level=pause").train()
    folder = tmp_path / "runs" / "run"
    with RunReader(folder) as reader:
        (event,) = reader.events("drift")
    assert event.body["alarms"][0]["kind"] == "level"
    acknowledged = "coach.drift.acknowledged=[doubler/task, checker/task]"
    trained = start(acknowledged, folder=folder).train()
    assert (trained.summary.status, trained.summary.iterations) == ("done", 8)


def test_an_alarm_that_is_answered_with_correction_takes_the_preference_off(start):
    trained = start(*LIKES_EVEN, "coach.drift.level=correct", "coach.bias.shrink=1").train()
    with RunReader(trained.folder) as reader:
        last = [reader.trajectory(row.id) for row in reader.trajectories.where(split="train", iteration=7)]
        (event, *_) = reader.events("drift")
    assert event.body["iteration"] < 8
    scores = {stratum: [v.score for one in last if one.task.stratum == stratum for v in one.verdicts]
              for stratum in ("even", "odd")}  # fmt: skip
    raw = {v.raw_score for one in last for v in one.verdicts}
    assert raw == {5.0, 9.0}
    assert abs(sum(scores["even"]) / len(scores["even"]) - sum(scores["odd"]) / len(scores["odd"])) < 1.0


def test_what_is_learned_of_bias_survives_a_resume(start, tmp_path):
    whole = start(*LIKES_EVEN, "coach.bias.correct=true", name="whole").train()
    part = start(*LIKES_EVEN, "coach.bias.correct=true", "train.iterations=4", name="part").train()
    resumed = start("train.iterations=8", folder=part.folder).train()
    assert [v.score for v in verdicts(resumed.folder)] == [v.score for v in verdicts(whole.folder)]
    ends = [Checkpoints(one.folder / "checkpoints").load_latest().manifest.coach for one in (whole, resumed)]
    assert ends[0] == ends[1]


def test_a_pause_can_be_answered_with_correction_on_resume(start, tmp_path):
    with pytest.raises(GuardStop):
        start(*LIKES_EVEN, "coach.drift.level=pause", "coach.bias.shrink=1").train()
    folder = tmp_path / "runs" / "run"
    with RunReader(folder) as reader:
        (event,) = reader.events("drift")
    trained = start("coach.drift.level=correct", folder=folder).train()
    with RunReader(trained.folder) as reader:
        later = [
            verdict
            for row in reader.trajectories.where(split="train")
            if row.iteration >= event.body["iteration"]
            for verdict in reader.trajectory(row.id).verdicts
        ]
    assert later and all(verdict.raw_score is not None for verdict in later)


def test_an_acknowledged_gap_names_an_agent_of_the_team(start):
    with pytest.raises(ConfigError, match=r"coach.drift.acknowledged: 'doublr'.*Did you mean doubler"):
        start("coach.drift.acknowledged=[doublr/task]").check()
