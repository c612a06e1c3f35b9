"""The whole search on the relay team: what it finds, spends, refuses and repeats."""

from itertools import count
from types import SimpleNamespace

import pytest

import mappa_gepa
from mappa import compare
from mappa.runs import RunReader
from mappa.sessions import restore_trusted
from mappa.testing import load_plugins
from mappa_core import ConfigError, GuardStop, Offer, RunError, Task, hookimpl
from mappa_gepa.improve import choose_candidate
from mappa_gepa.parts import part_of
from mappa_gepa.relay.models import InstructionFollower
from mappa_gepa.stored_search import write_prompts

SORT = "Sort the words by the alphabet."
EXACT = "policies.default.options.slip=0"


def test_a_defect_is_mended_and_the_gain_is_of_tasks_that_chose_nothing(search):
    found = search(EXACT)
    assert found.changed == ("sorter",)
    assert SORT in found.prompts["sorter"] and SORT not in found.originals["sorter"]
    assert found.before.interval.mean < 0.5 and found.after.interval.mean == 1.0
    assert found.gain.low > 0
    with RunReader(found.folder) as run:
        assert len(list(run.trajectories)) == found.rollouts <= 80
        parts = [part_of(Task(id=row.task, prompt="")) for row in run.trajectories]
        assert all(part == "report" for part in parts[parts.index("report") :])
        judged = {row.split for row in run.verdicts}
        asked = [event.body for event in run.events("proposal")]
    assert judged == {"train"}, "coaches judge what proposals learn from, and nothing else"
    assert len(asked) == found.proposals
    assert (found.folder / "prompts/sorter.md").read_text() == found.prompts["sorter"]


def test_the_report_is_recorded_and_is_no_evaluation_of_which_a_reader_would_find_the_rollouts_of_another(search):
    found = search(EXACT)
    with RunReader(found.folder) as run:
        assert not list(run.evaluations)
        (recorded,) = (event.body for event in run.events("improvement"))
        numbers = {row.iteration for row in run.trajectories if part_of(Task(id=row.task, prompt="")) == "report"}
    means = [recorded[name]["interval"]["mean"] for name in ("before", "after")]
    assert means == [found.before.interval.mean, found.after.interval.mean]
    assert numbers == {0, 1}, "by the iteration of both, 0, the originals would be read as what was found"
    with pytest.raises(RunError, match="has no evaluation"):
        compare(found.folder)


def test_the_found_prompts_are_a_config_of_the_run(search, registry):
    from mappa.sessions import compose

    found = search(EXACT)
    composed = compose(registry, "gepa", config_files=[found.folder / "improved.yaml"])
    assert composed.config.agents["sorter"].prompt == found.prompts["sorter"]


def test_an_agent_whose_name_is_no_file_name_has_a_prompt_file(tmp_path):
    write_prompts(tmp_path, {"planner/critic": "a", "../x": "b", "data engineer": "c"})
    names = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.md")}
    assert names == {"prompts/planner%2Fcritic.md", "prompts/..%2Fx.md", "prompts/data engineer.md"}


@pytest.mark.parametrize("rollouts", [41, 50, 67])
def test_the_budget_is_never_exceeded(search, rollouts):
    assert search("seed=3", rollouts=rollouts, patience=1000, feedback="outcome").rollouts <= rollouts


def test_a_proposer_that_writes_answers_is_refused_and_counted(search):
    found = search(EXACT, proposer_settings=("mode=answer",))
    assert found.changed == () and found.gain is None
    assert found.refusals == {"leak": found.proposals} and found.proposals == 4


def test_agents_that_are_not_named_keep_their_prompts(search):
    assert search(EXACT, agents=("writer",)).changed == ()


def test_equal_settings_find_equal_prompts(search):
    first, second = search(feedback="outcome"), search(feedback="outcome")
    assert (first.prompts, first.rollouts, first.gain) == (second.prompts, second.rollouts, second.gain)


@pytest.mark.parametrize(
    ("settings", "options", "message"),
    [
        ((), {"rollouts": 31}, "--rollouts 31: a single proposal with its report takes 32"),
        ((), {"minibatch": 0}, "--minibatch: must be at least 1"),
        ((), {"agents": ("boss",)}, "--agent boss: relay names no prompt of it; it names those of cleaner"),
        (("coach.spend_usd=1",), {}, "price of instruction-editor .* is unknown"),
        (("tasks.options.train=2",), {}, "parted by the hash"),
        ((), {"proposer_settings": ("mode=x",)}, "proposer.mode: must be one of edit"),
    ],
)
def test_wrong_input_is_one_error_before_anything_is_played(search, tmp_path, settings, options, message):
    with pytest.raises(ConfigError, match=message):
        search(*settings, **options)
    assert not list(tmp_path.iterdir())


def test_the_choice_prefers_the_original_and_then_the_shorter():
    candidates = [{"a": "long text"}, {"a": "longer text"}, {"a": "text"}]
    assert choose_candidate(candidates, [0.5, 0.5, 0.5]) == 0
    assert choose_candidate(candidates, [0.4, 0.5, 0.5]) == 2
    assert choose_candidate(candidates, [0.4, 0.6, 0.5]) == 1


class Interrupted:
    """A plugin whose follower counts the calls that it answers, and stops the run at one of them."""

    def __init__(self):
        self.answered, self.stop_at = 0, None

    def registry(self):
        plugin = SimpleNamespace(**{name: getattr(mappa_gepa, name) for name in dir(mappa_gepa) if "mappa_" in name})
        interrupted = self

        class Follower(InstructionFollower):
            async def complete(self, request):
                if interrupted.answered == interrupted.stop_at:
                    raise RunError("the machine stops")
                interrupted.answered += 1
                return await super().complete(request)

        @hookimpl
        def mappa_transports():
            from mappa_gepa.relay.models import EditorOptions, FollowerOptions, InstructionEditor

            yield Offer("instruction-follower", Follower, FollowerOptions)
            yield Offer("instruction-editor", InstructionEditor, EditorOptions)

        plugin.mappa_transports = mappa_transports
        return load_plugins(only=[], modules={"gepa": plugin})


ONE_BY_ONE = "sampling.concurrency=1"


def test_search_stopped_at_any_point_resumes_to_the_same_result(search, tmp_path):
    whole = Interrupted()
    found = search(ONE_BY_ONE, registry=whole.registry())
    broken = Interrupted()
    registry, folder, composed = broken.registry(), None, None
    for stop in count(7, 31):
        broken.stop_at = stop if stop < whole.answered else None
        settings = (ONE_BY_ONE, "run.name=broken")
        try:
            again = search(*settings, registry=registry, folder=folder, composed=composed)
            break
        except RunError:
            folder = tmp_path / "broken"
            composed = restore_trusted(registry, folder)
    assert stop > 100, "it stopped often"
    assert broken.answered == whole.answered, "nothing is paid twice"
    assert (again.prompts, again.rollouts, again.proposals) == (found.prompts, found.rollouts, found.proposals)
    assert (again.gain, again.chosen_on, again.refusals) == (found.gain, found.chosen_on, found.refusals)
    assert (again.folder / "gepa.log").read_text() == (found.folder / "gepa.log").read_text()


def test_the_spending_cap_stops_the_search_and_a_higher_one_goes_on(search, registry, tmp_path):
    price = ("price={input: 1.0, output: 2.0}",)
    found = search(proposer_settings=price)
    # A fifth of a cent more, as each proposal may cost that much.
    settings = ("run.name=capped", f"coach.spend_usd={found.usd / 3 + 0.002}")
    with pytest.raises(GuardStop, match=r"spend.*--resume"):
        search(*settings, proposer_settings=price, max_tokens=1024)
    cap = f"coach.spend_usd={2 * found.usd + 0.005}"
    composed = restore_trusted(registry, tmp_path / "capped", (cap,))
    again = search(folder=tmp_path / "capped", composed=composed, proposer_settings=price, max_tokens=1024)
    assert (again.prompts, again.rollouts, again.gain) == (found.prompts, found.rollouts, found.gain)
    assert again.usd == pytest.approx(found.usd, rel=0.1)


def test_a_failing_proposer_stops_the_search_with_its_reason(search, registry):
    from mappa_core.transport import CallError
    from mappa_gepa.relay.models import InstructionEditor

    async def refuse(self, request):
        raise CallError("key", "no such key")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InstructionEditor, "complete", refuse)
        with pytest.raises(GuardStop, match="no proposal from instruction-editor: key: no such key"):
            search(EXACT)
