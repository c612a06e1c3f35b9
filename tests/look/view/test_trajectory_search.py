"""Choosing trajectories: filters against a plain look at all records, pages without a gap, words, runs that go on."""

from __future__ import annotations

import re
import shutil
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mappa.look.view.search_index import open_index
from mappa.look.view.trajectory_search import FoundTrajectory, TrajectoryFilter, TrajectorySearch, to_fts_query
from mappa.runs import RunFolder, RunReader
from mappa_core import Breach, Completion, Failure, Message, RunError, Step, Task, ToolResult, Trajectory, Verdict

AGENTS = ("solver", "executor", "verifier")
STRATA = ("sum", "product", "odd \"%_'")
WORDS = ("apple", "banana split", "cherry_pie", "x = df['price']")


def step(trajectory: str, position: int, text: str, **changes: object) -> Step:
    completion = Completion(text=text, prompt_tokens=None, tokens=None, logprobs=None, finish="stop")
    fields = {
        "id": f"{trajectory}/{position}",
        "agent": AGENTS[position % 3],
        "turn": 0,
        "position": position,
        "policy": "default",
        "messages": (),
        "reply": Message(role="assistant", content=text, reasoning="pondering"),
        "completion": completion,
    }
    return Step(**{**fields, **changes})  # type: ignore[arg-type]


def verdict(random: Random, on: str, number: int) -> Verdict:
    own = {"id": f"{on}/{number}", "step": on, "coach": "panel"}
    if random.random() < 0.2:
        return replace(random.choice((Verdict.failed("tired"), Verdict.abstained("unsure"))), **own)
    members = tuple(Verdict.scored(random.randint(0, 10), "so") for _ in range(random.choice((0, 1, 3))))
    blame = random.choice((None, "nobody", *AGENTS))
    return replace(Verdict.scored(random.randint(0, 10), "zebra", blame=blame), members=members, **own)


def trajectory(number: int) -> Trajectory:
    """One to four actions with up to two verdicts each, of which some are of ensembles."""
    random, identity = Random(number), f"t{number:03d}"
    steps, verdicts = [], []
    for position in range(random.randint(1, 4)):
        missed = (Breach(agent="executor", kind="missing_input", path="a.csv"),) if random.random() < 0.2 else ()
        printed = (ToolResult(tool="python", status="ok", stdout="Ünïcode Traceback"),) if number % 7 == 0 else ()
        steps.append(step(identity, position, f"{random.choice(WORDS)} n{number}", breaches=missed, results=printed))
        verdicts += [verdict(random, steps[-1].id, count) for count in range(random.randint(0, 2))]
    failure = Failure(kind=random.choice(("ToolError", "Late")), message="gone") if random.random() < 0.2 else None
    outcome = {"correct": float(random.random() < 0.5), "fair": random.random()}
    return Trajectory(
        id=identity,
        task=Task(id=f"task{number}", prompt=f"please {number}", stratum=random.choice(STRATA)),
        sample=0,
        iteration=number // 10,
        steps=tuple(steps),
        verdicts=tuple(verdicts),
        outcome={} if failure else outcome,
        error=failure,
    )


def split_of(number: int) -> str:
    return ("train", "train", "eval", "counterfactual")[number % 4]


def write(folder: RunFolder, one: Trajectory, split: str, *, ends: bool = True) -> None:
    folder.store.begin_trajectory(split, one.id, one.task, one.sample, one.iteration)
    for action in one.steps:
        folder.store.record_step(one.id, action)
    for said in one.verdicts:
        folder.store.record_verdict(said)
    if ends:
        folder.store.end_trajectory(one)


@pytest.fixture(scope="module")
def all_of_them() -> list[Trajectory]:
    return [trajectory(number) for number in range(60)]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunFolder]:
    with RunFolder.create(tmp_path / "runs", "one", plugin="p", recipe="r", config="seed: 0\n") as created:
        yield created


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, all_of_them: list[Trajectory]) -> Path:
    root = tmp_path_factory.mktemp("runs")
    with RunFolder.create(root, "one", plugin="p", recipe="r", config="seed: 0\n") as run:
        for number, one in enumerate(all_of_them):
            write(run, one, split_of(number))
        return run.path


def fits(one: Trajectory, split: str, wanted: TrajectoryFilter) -> bool:
    """The reference: looks at the records themselves."""
    agents = {action.id: action.agent for action in one.steps}
    scored = [(agents[said.step], said.score) for said in one.verdicts if said.score is not None]
    apart = [
        max(points) - min(points)
        for said in one.verdicts
        if len(points := [member.score for member in said.members if member.score is not None]) > 1
    ]
    named = one.outcome.get(wanted.outcome[0]) if wanted.outcome else None
    return all(
        (
            split == wanted.split if wanted.split else split != "counterfactual",
            wanted.iteration in (None, one.iteration),
            wanted.stratum in (None, one.task.stratum),
            wanted.agent is None or wanted.agent in agents.values(),
            wanted.outcome is None or (named is not None and (named >= 1.0) == wanted.outcome[1]),
            wanted.score is None
            or any(
                wanted.score[0] <= points <= wanted.score[1] and wanted.agent in (None, agent)
                for agent, points in scored
            ),
            wanted.blame is None or wanted.blame in {said.blame for said in one.verdicts},
            wanted.disagreement is None or any(points >= wanted.disagreement for points in apart),
            wanted.failure is None or (one.error is not None and one.error.kind == wanted.failure),
            wanted.breach is None or wanted.breach in {breach.kind for s in one.steps for breach in s.breaches},
            wanted.verdict is None or wanted.verdict in {said.status for said in one.verdicts},
        )
    )


def find(reader: RunReader, wanted: TrajectoryFilter, **page: int | None) -> list[FoundTrajectory]:
    return TrajectorySearch(reader).find(wanted, **page)  # type: ignore[arg-type]


def numbers(reader: RunReader, wanted: TrajectoryFilter, **page: int | None) -> list[int]:
    return [found.number for found in find(reader, wanted, **page)]


filters = st.builds(
    TrajectoryFilter,
    split=st.sampled_from([None, None, "train", "eval", "counterfactual"]),
    iteration=st.sampled_from([None, None, 0, 3]),
    stratum=st.sampled_from([None, None, *STRATA]),
    agent=st.sampled_from([None, None, *AGENTS]),
    outcome=st.sampled_from([None, None, ("correct", True), ("correct", False), ("fair", False), ("other", True)]),
    score=st.sampled_from([None, None, (0.0, 3.0), (9.0, 10.0), (4.0, 4.0)]),
    blame=st.sampled_from([None, None, *AGENTS]),
    disagreement=st.sampled_from([None, None, 4.0, 9.0]),
    failure=st.sampled_from([None, None, "ToolError", "never"]),
    breach=st.sampled_from([None, None, "missing_input"]),
    verdict=st.sampled_from([None, None, "failed", "abstained"]),
)


@settings(max_examples=60)
@given(wanted=filters)
def test_filters_leave_what_a_plain_look_at_all_records_leaves(
    folder: Path, all_of_them: list[Trajectory], wanted: TrajectoryFilter
) -> None:
    expected = [one.id for number, one in enumerate(all_of_them) if fits(one, split_of(number), wanted)][::-1]
    with RunReader(folder) as reader:
        assert [found.row.id for found in find(reader, wanted, limit=100)] == expected


@settings(max_examples=25)
@given(wanted=filters, size=st.integers(1, 7))
def test_pages_have_no_gap_and_no_double_in_either_direction(folder: Path, wanted: TrajectoryFilter, size: int) -> None:
    with RunReader(folder) as reader:
        whole = numbers(reader, wanted, limit=100)
        down: list[int] = []
        while page := numbers(reader, wanted, before=down[-1] if down else None, limit=size):
            down += page
        up: list[int] = []
        while page := numbers(reader, wanted, after=up[-1] if up else 0, limit=size):
            up += page
        for start in (0, *whole):
            assert TrajectorySearch(reader).count(wanted, after=start, limit=9) == min(9, sum(n > start for n in whole))
    assert down == whole == up[::-1]


@pytest.mark.parametrize(
    ("words", "column", "expected"),
    [
        ("n17", None, lambda one: one.id == "t017"),
        ("N17", "said", lambda one: one.id == "t017"),
        ("n17", "task", lambda one: False),
        ("apple n1", "said", lambda one: _says(one, "apple") and re.search(r"\bn1", _text(one)) is not None),
        ('"banana split"', None, lambda one: _says(one, "banana split")),
        ('"split banana"', None, lambda one: False),
        ("cherry_pie", None, lambda one: _says(one, "cherry_pie")),
        ("df['price']", None, lambda one: _says(one, "df['price']")),
        ("unicode trace", "printed", lambda one: int(one.id[1:]) % 7 == 0),
        ("zebra", "judged", lambda one: any(said.reasoning == "zebra" for said in one.verdicts)),
        ("pondering", "said", lambda one: True),
        ("please", "task", lambda one: True),
        ("pear", None, lambda one: False),
    ],
)
def test_words_are_found_where_they_stand(folder, all_of_them, words, column, expected) -> None:
    played = [one for number, one in enumerate(all_of_them) if split_of(number) != "counterfactual"]
    with RunReader(folder) as reader:
        found = [one.row.id for one in find(reader, TrajectoryFilter(words=words, column=column), limit=100)]
    assert found == [one.id for one in played if expected(one)][::-1]


def _text(one: Trajectory) -> str:
    return " ".join(action.completion.text for action in one.steps)


def _says(one: Trajectory, words: str) -> bool:
    return words in _text(one)


@settings(max_examples=40)
@given(words=st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=30))
def test_whatever_is_typed_is_looked_for_as_text(folder: Path, words: str) -> None:
    with RunReader(folder) as reader:
        found = numbers(reader, TrajectoryFilter(words=words), limit=100)
        assert to_fts_query(words) or found == numbers(reader, TrajectoryFilter(), limit=100)


def test_choices_and_marks_are_what_was_recorded(folder: Path, all_of_them: list[Trajectory]) -> None:
    with RunReader(folder) as reader:
        search = TrajectorySearch(reader)
        choices, shown = search.load_choices(), search.find(TrajectoryFilter(), limit=100)
    assert choices.stratum == tuple(sorted(STRATA)) and choices.agent == tuple(sorted(AGENTS))
    assert choices.outcome == ("correct", "fair") and choices.blame == tuple(sorted(AGENTS))
    assert choices.failure == ("Late", "ToolError") and choices.breach == ("missing_input",) and choices.words
    by_id = {one.id: one for one in all_of_them}
    for found in shown:
        one = by_id[found.row.id]
        agents = {action.id: action.agent for action in one.steps}
        points: dict[str, list[float]] = {}
        for said in one.verdicts:
            if said.score is not None:
                points.setdefault(agents[said.step], []).append(said.score)
        assert found.facets.scores == {agent: (min(ones), max(ones)) for agent, ones in points.items()}
        assert set(found.facets.blamed) == {said.blame for said in one.verdicts} - {None, "nobody"}


def test_what_is_under_way_is_found_by_what_is_known_of_it(run: RunFolder) -> None:
    one = trajectory(3)
    write(run, one, "train", ends=False)
    with RunReader(run.path) as reader:
        assert [
            found.row.status for found in find(reader, TrajectoryFilter(agent="solver", stratum=one.task.stratum))
        ] == ["open"]
        assert find(reader, TrajectoryFilter(words="pondering")) == []


def test_a_replay_adds_nothing_and_another_ending_replaces_the_first(run: RunFolder) -> None:
    lost = replace(trajectory(3), outcome={}, error=Failure(kind="ToolError", message="lost"))
    for _ in range(3):
        write(run, lost, "train")
    again = step(lost.id, len(lost.steps), "marzipan")
    whole = replace(lost, steps=(*lost.steps, again), outcome={"correct": 1.0}, error=None)
    for one in (trajectory(5), whole, trajectory(9)):
        write(run, one, "train")
    with RunReader(run.path) as reader:
        pages = [find(reader, TrajectoryFilter(words="pondering"), limit=size) for size in (1, 2, 3, 4)]
        assert [[found.row.id for found in page] for page in pages[:3]] == [
            ["t009"],
            ["t009", "t005"],
            ["t009", "t005", "t003"],
        ]
        assert pages[3] == pages[2]
        assert len(find(reader, TrajectoryFilter(words="marzipan", outcome=("correct", True)))) == 1
        assert find(reader, TrajectoryFilter(failure="ToolError")) == []


def test_text_that_utf8_lacks_is_indexed_all_the_same(run: RunFolder) -> None:
    odd = trajectory(3)
    odd = replace(odd, steps=(step(odd.id, 0, "before \ud800 after \x00 end"),), verdicts=())
    write(run, odd, "train")
    with RunReader(run.path) as reader:
        assert [len(find(reader, TrajectoryFilter(words=word))) for word in ("before", "after", "end", "\ud800")] == [
            1,
            1,
            1,
            1,
        ]


def test_the_index_follows_a_run_that_goes_on(run: RunFolder) -> None:
    """Searched before, between and after what is recorded, it finds what a search that begins later finds."""
    lost = replace(trajectory(3), outcome={}, error=Failure(kind="ToolError", message="lost"))
    again = step(lost.id, len(lost.steps), "marzipan")
    whole = replace(lost, steps=(*lost.steps, again), outcome={"correct": 1.0}, error=None)
    wanted = (
        TrajectoryFilter(), TrajectoryFilter(words="pondering"), TrajectoryFilter(words="marzipan"),
        TrajectoryFilter(failure="ToolError"), TrajectoryFilter(outcome=("correct", True)),
        TrajectoryFilter(words="zebra", score=(0.0, 10.0)), TrajectoryFilter(blame="solver"),
    )  # fmt: skip
    for count, one in enumerate((trajectory(2), lost, trajectory(5), whole, trajectory(9))):
        write(run, one, "train", ends=count != 2)
        with RunReader(run.path) as reader:
            known = [find(reader, one) for one in wanted]
            open_index.cache_clear()
            assert known == [find(reader, one) for one in wanted]
    late = replace(
        Verdict.scored(1.0, "afterwards", blame="executor"), id="late", step="t002/0", coach="c", phase="again"
    )
    with RunReader(run.path) as reader:
        before = numbers(reader, TrajectoryFilter(words="pondering"))
        run.store.record_verdict(late)
        assert 1 in numbers(reader, TrajectoryFilter(score=(1.0, 1.0), blame="executor"))
        assert numbers(reader, TrajectoryFilter(words="pondering")) == before
        assert numbers(reader, TrajectoryFilter(words="afterwards")) == []
        open_index.cache_clear()
        assert numbers(reader, TrajectoryFilter(words="afterwards")) == []


def test_a_run_in_a_folder_that_nobody_may_write_to_is_searched(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    before = sorted(copy.iterdir())
    for path in (*copy.rglob("*"), copy):
        path.chmod(0o555)
    try:
        with RunReader(copy) as reader:
            assert find(reader, TrajectoryFilter(words="pondering"))
        assert sorted(copy.iterdir()) == before
    finally:
        copy.chmod(0o755)


def test_a_search_leaves_the_run_to_its_writer(run: RunFolder) -> None:
    write(run, trajectory(3), "train")
    with RunReader(run.path) as reader:
        assert find(reader, TrajectoryFilter(words="pondering"))
    run.close()
    assert [path.name for path in run.path.glob("run.db*")] == ["run.db"], "nothing holds its journal"


def test_requests_at_once_share_an_index(folder: Path) -> None:
    open_index.cache_clear()

    def search(_: int) -> list[int]:
        with RunReader(folder) as reader:
            return numbers(reader, TrajectoryFilter(words="pondering"), limit=100)

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(search, range(16)))
    assert len(found[0]) == 45 and all(one == found[0] for one in found)


def test_a_damaged_record_is_an_error_of_the_run(run: RunFolder) -> None:
    write(run, trajectory(3), "train")
    run.close()
    with sqlite3.connect(run.path / "run.db") as connection:
        connection.execute("UPDATE steps SET body = '{'")
    with RunReader(run.path) as reader:
        for _ in range(2):
            with pytest.raises(RunError, match="it is damaged"):
                find(reader, TrajectoryFilter())


def test_words_need_a_sqlite_that_can_index_them(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with RunReader(folder) as reader:
        search = TrajectorySearch(reader)
        monkeypatch.setattr(search._index, "has_words", False)
        assert not search.load_choices().words
        with pytest.raises(RunError, match="built without FTS5"):
            search.find(TrajectoryFilter(words="pondering"))


def test_a_score_is_found_whichever_of_many_agents_has_it(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, "many", plugin="p", recipe="r", config="") as folder:
        for name, agents, score in (("crowd", range(201), 1.0), ("last", (999,), 4.0)):
            steps = tuple(step(name, at, "x", agent=f"agent{agent:03d}") for at, agent in enumerate(agents))
            said = [replace(Verdict.scored(score, "so"), id=step.id, step=step.id, coach="c") for step in steps]
            task = Task(id=name, prompt=name)
            whole = Trajectory(id=name, task=task, sample=0, iteration=0, steps=steps, verdicts=tuple(said))
            write(folder, whole, "train")
    with RunReader(folder.path) as reader:
        found = TrajectorySearch(reader).find(TrajectoryFilter(score=(4.0, 4.0)))
    assert [one.row.id for one in found] == ["last"]
