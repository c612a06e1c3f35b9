"""The loop and its coaches: hindsight, caps on spending, drift, and who is told where data goes."""

from dataclasses import dataclass, replace

import pytest

from mappa.commands import Console
from mappa.runs import RunReader
from mappa.testing import load_plugins
from mappa.training import Run
from mappa.training.listener import Listener
from mappa_core import Coach, ConfigError, GuardStop, Offer, Task, Usage, Verdict, hookimpl
from mappa_core.coach import Alarm, DriftReport, Gap, Interval
from mappa_core.transport import Provider


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

    def __call__(self, options: DearOptions, kind: type[Dear]) -> Dear:
        self.made.append(kind(options))
        return self.made[-1]


class Dears:
    def __init__(self) -> None:
        self.making = Making()
        self.confessing = False

    @hookimpl
    def mappa_tasks(self):
        yield Offer("many", Many)

    @hookimpl
    def mappa_coaches(self):
        yield Offer("dear", lambda options: self.making(options, Confessing if self.confessing else Dear), DearOptions)


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
        ("coach.reward={live: 1, again: 1}", r"coach.reward.again: .*mappa judge"),
        ("coach.hindsight={use: dear}", r"coach.hindsight.use=dear .*coach.reward.after=1.*coach.hindsight=null"),
    ],
)
def test_phase_without_a_coach_or_without_a_weight_is_refused(start, setting, said):
    with pytest.raises(ConfigError, match=said):
        start(setting).check()


def test_spending_cap_stops_the_run_with_a_checkpoint_and_a_higher_cap_resumes(start, dears, tmp_path, kept):
    run = start("coach.spend_usd=1.0")
    with pytest.raises(GuardStop, match=r"coach.spend_usd=1.*higher cap(.|\n)*checkpoint was written"):
        run.train()
    folder = tmp_path / "runs" / "run"
    assert kept(folder) == (1,)
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
    dear = {"name": "dear", "model": "d-1", "host": "dear.example", "priced": True, "batched": False, "reserves": False}
    assert said.body["providers"] == [dear]


def test_listener_hears_of_providers_before_anything_else(start):
    heard = []

    class Ears(Listener):
        def on_providers(self, providers):
            heard.append([provider.host for provider in providers])

        def on_rollouts_start(self, split, done, rollouts):
            heard.append(split)

    start("train.iterations=1").train(Ears())
    assert heard[:2] == [["dear.example"], "eval"]


GAP = Gap(
    phase="live",
    agent="doubler",
    stratifier="task",
    stratum="even",
    against="odd",
    actions=(10, 10),
    points=Interval(mean=4.0, low=3.0, high=5.0),
)


class Confessing(Dear):
    """Reports of itself what its options say, once an iteration, and counts the verdicts that it learned from."""

    def __init__(self, options) -> None:
        super().__init__(options)
        self.learned = []

    def learn(self, trajectories):
        self.learned.append([verdict.coach for trajectory in trajectories for verdict in trajectory.verdicts])
        if len(self.learned) > 1:
            return None
        alarms = (Alarm(kind="level", gap=GAP),)
        return DriftReport(gaps=(GAP,), alarms=alarms, notes=("I like even ones",), pause="I cannot be believed")

    def state_dict(self):
        return {"learned": self.learned}

    def load_state_dict(self, state):
        self.learned = list(state["learned"])


def test_drift_report_of_a_coach_is_recorded_printed_and_pauses_the_run(start, dears, tmp_path, capsys, line_progress):
    dears.confessing = True
    with pytest.raises(GuardStop, match=r"I cannot be believed\nA checkpoint was written"):
        start("train.iterations=2").train(line_progress(Console(width=200), 2))
    said = capsys.readouterr().out
    assert "coach drift, level: the coach gives doubler +4.00 points" in said and "coach: I like even ones" in said
    folder = tmp_path / "runs" / "run"
    with RunReader(folder) as reader:
        (alarmed,), (noted,), (report,) = reader.events("drift"), reader.events("coach"), reader.iterations
    assert alarmed.body["alarms"][0]["kind"] == "level" and noted.body["notes"] == ["I like even ones"]
    assert report.drift.gaps == (GAP,) and report.drift.notes == ("I like even ones",)
    trained = start(folder=folder).train()
    assert (trained.summary.status, trained.summary.iterations) == ("done", 2)
    assert len(dears.making.made[-1].learned) == 2


def test_a_coach_learns_from_its_own_verdicts_alone(start, dears):
    dears.confessing = True
    with pytest.raises(GuardStop):
        start("coach.by_agent={checker: {use: dear, options: {usd: 1}}}", "train.iterations=1").train()
    own = [one.learned[0] for one in dears.making.made[-2:]]
    assert [len(verdicts) for verdicts in own] == [4, 4]


@pytest.mark.parametrize(
    ("normalize", "policies", "warned"), [("policy", 1, True), ("agent", 1, False), ("policy", 2, False)]
)
def test_advantages_that_are_normalised_by_a_shared_policy_are_warned_of(
    start, normalize, policies, warned, overridden_settings
):
    shared = "agents={doubler: {policy: one}, checker: {policy: one}}" if policies == 1 else "agents={}"
    options = f"estimator={{use: reinforce_plus_plus, options: {{normalize: {normalize}}}}}"
    said = list(overridden_settings(start(shared, options).composed, ("doubler", "checker"), ()))
    assert [one.partition(":")[0] for one in said] == ["estimator.options.normalize=policy"] * warned


@pytest.mark.parametrize(
    ("shapers", "warned"),
    [("scale, truncation_filter, outcome", True), ("outcome, truncation_filter", False), ("scale", False),
     ("scale, truncation_filter, difference", True), ("difference", False)],
)  # fmt: skip
def test_shapers_whose_rewards_outcome_replaces_are_warned_of(start, shapers, warned, overridden_settings):
    listed = ", ".join(f"{{use: {use}}}" for use in shapers.split(", "))
    credit = "credit.counterfactual.use=resample"
    said = list(overridden_settings(start(f"shapers=[{listed}]", credit).composed, ("doubler", "checker"), ()))
    last, before = shapers.split(", ")[-1], "scale, truncation_filter before it has no effect"
    expected = f"shapers: {last} replaces every reward, so that {before}"
    assert [one.partition(";")[0] for one in said] == [expected] * warned


def test_difference_beside_the_actions_own_reward_replaces_none(start, overridden_settings):
    own = "shapers=[{use: scale}, {use: difference, options: {process_weight: 1}}]"
    composed = start(own, "credit.counterfactual.use=resample").composed
    assert list(overridden_settings(composed, ("doubler", "checker"), ())) == []


@pytest.mark.parametrize(
    ("loaded", "warned"), [((), ["policies.doubler_2 has no effect: agents play by one, checker"]), (["doubler_2"], [])]
)
def test_a_policy_that_nothing_uses_is_warned_of(start, loaded, warned, overridden_settings):
    run = start("agents.doubler.policy=one", "policies.one.model=fake", "policies.doubler_2.model=fake")
    assert list(overridden_settings(run.composed, ("doubler", "checker"), loaded)) == warned


def test_a_warm_up_that_the_run_does_not_end_is_warned_of(start, overridden_settings):
    words = ("train.iterations=4", "train.learning_rate=0.01")
    for warmup, warned in ((4, False), (8, True)):
        composed = start(*words, f"train.warmup_iterations={warmup}").composed
        said = list(overridden_settings(composed, ("doubler", "checker"), ()))
        assert bool(said) == warned
    assert "the learning rate only grows, to 0.005 in place of 0.01" in said[0]


def test_by_default_agents_of_a_shared_policy_are_normalised_apart(start):
    assert (
        start("estimator={use: reinforce_plus_plus, options: {}}").composed.config.estimator.options.normalize
        == "agent"
    )
