"""From a log to whom is to blame by one call: plays are judged once, by each coach, also after kills at any moment."""

import asyncio
import json
import multiprocessing
import os
import signal
import sqlite3
import time
from contextlib import closing
from dataclasses import replace
from typing import ClassVar

import pytest

from mappa.cli import main
from mappa.look.observe import observe_run
from mappa.look.observe_logs import observe_logs, sum_up
from mappa.runs import RunFolder, RunReader
from mappa.testing import load_plugins
from mappa_core import Coach, InputError, Offer, Usage, Verdict, hookimpl


def chat(number, *, wrong=False):
    said = f"{number} * 8 = {number * 8 + wrong}"
    return {
        "messages": [
            {"role": "user", "content": f"What is {number} * 8?"},
            {"role": "assistant", "name": "planner", "content": "Multiply."},
            {"role": "assistant", "name": "writer", "content": said},
        ]
    }


def add(path, *rows):
    with path.open("a") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows))


class Counting(Coach):
    """Scores by the length of a reply, and counts what it is asked; fails for the actions named."""

    asked: ClassVar[list[str]] = []
    failing: ClassVar[set[str]] = set()
    price: ClassVar[float | None] = None

    def __init__(self, options) -> None: ...

    async def score(self, scene):
        self.asked.append(scene.step.id)
        if scene.step.reply.content in self.failing:
            raise RuntimeError("no")
        blame = "writer" if scene.step.reply.content.endswith("9") else None
        verdict = Verdict.scored(float(len(scene.step.reply.content) % 10), "by its length", blame=blame)
        return verdict if self.price is None else replace(verdict, usage=Usage(calls=1, usd=self.price))


class Plugin:
    @hookimpl
    def mappa_coaches(self):
        yield Offer("counting", Counting)


@pytest.fixture
def registry(monkeypatch):
    monkeypatch.setattr(Counting, "asked", [])
    monkeypatch.setattr(Counting, "failing", set())
    monkeypatch.setattr(Counting, "price", None)
    return load_plugins(only=("look", "evidence"), modules={"counting": Plugin()})


async def test_plays_are_judged_once_and_the_sums_are_those_of_the_plays(registry, tmp_path):
    path = tmp_path / "team.jsonl"
    add(path, *(chat(number, wrong=number == 1) for number in range(4)))

    async def look(**options):
        return await observe_logs(registry, [path], root=tmp_path / "runs", coach="counting", **options)

    first = await look()
    assert (first.imported.trajectories, first.verdicts.plays, len(Counting.asked)) == (4, 4, 8)
    again = await look()
    assert (again.imported.trajectories, again.verdicts.plays, len(Counting.asked)) == (0, 0, 8)
    assert again.folder == first.folder and again.sums == first.sums
    add(path, chat(4))
    more = await look()
    assert (more.imported.trajectories, more.verdicts.plays, len(Counting.asked)) == (1, 1, 10)
    # Against the slow way, which reads every play.
    whole, sums = observe_run(more.folder), more.sums
    assert (sums.plays, sums.looked_at, sums.cannot_tell) == (whole.rollouts, whole.looked_at, whole.cannot_tell)
    for one, other in zip(sums.agents, whole.agents, strict=True):
        assert (one.agent, one.actions, one.scored, one.low) == (
            other.agent, other.actions, other.scored, other.low,
        )  # fmt: skip
        assert one.blamed == other.blamed and one.score == pytest.approx(other.score.mean)
    assert {one.agent: one.blamed for one in sums.agents} == {"planner": 0, "writer": 1}


async def test_plays_that_ended_early_are_no_successes_in_the_sums_either(registry, tmp_path):
    path = tmp_path / "team.jsonl"
    add(path, *(chat(number) for number in range(4)))
    found = await observe_logs(registry, [path], root=tmp_path / "runs", coach="counting")
    failure = json.dumps({"kind": "Imported", "message": "out of memory"})
    for outcome, known, success in (('{"correct": 1.0}', 4, 0.75), ("{}", 0, None)):
        with closing(sqlite3.connect(found.folder / "run.db")) as database, database:
            database.execute("UPDATE trajectories SET outcome = ?", (outcome,))
            database.execute("UPDATE trajectories SET outcome = '{}', error = ? WHERE number = 1", (failure,))
        sums, whole = sum_up(found.folder), observe_run(found.folder)
        assert (sums.plays, sums.known, sums.success) == (4, known, success)
        assert sums.unsuccessful == whole.unsuccessful == sums.looked_at == 1
        if success is not None:
            assert success == whole.evaluation.interval.mean


async def test_verdicts_that_failed_are_asked_for_again_and_another_coach_is_asked_about_all(registry, tmp_path):
    path = tmp_path / "team.jsonl"
    add(path, chat(1), chat(2), chat(3))

    async def look(**options):
        return await observe_logs(registry, [path], root=tmp_path / "runs", **options)

    Counting.failing = {"2 * 8 = 16"}
    first = await look(coach="counting")
    assert first.verdicts.counts.failed == 1
    add(path, chat(4))
    Counting.failing, Counting.asked = set(), []
    second = await look(coach="counting")
    # The action that failed alone, not its neighbour; and the new play.
    assert (second.verdicts.plays, second.verdicts.counts.verdicts, len(Counting.asked)) == (2, 3, 3)
    assert (await look(coach="counting")).verdicts.plays == 0
    other = await look()
    assert (other.verdicts.coach, other.verdicts.plays) == ("evidence", 4)
    assert (await look()).verdicts.plays == 0


async def test_a_coach_that_answers_nothing_is_not_asked_about_the_rest(registry, tmp_path, monkeypatch):
    monkeypatch.setattr("mappa.look.judge_new.PLAYS_AT_ONCE", 2)
    path = tmp_path / "team.jsonl"
    add(path, *map(chat, range(6)))
    Counting.failing = {"Multiply.", *(f"{number} * 8 = {number * 8}" for number in range(6))}
    first = await observe_logs(registry, [path], root=tmp_path / "runs", coach="counting")
    assert first.verdicts.counts.failed == len(Counting.asked) == 4
    Counting.failing, Counting.asked = set(), []
    await observe_logs(registry, [path], root=tmp_path / "runs", coach="counting")
    assert len(Counting.asked) == 12


async def test_the_cap_counts_what_was_spent_before_and_what_it_stops_is_asked_for_later(registry, tmp_path):
    path, Counting.price = tmp_path / "team.jsonl", 0.25
    add(path, *map(chat, range(4)))
    words = ("coach.spend_usd=1", "coach.max_missing=1")

    async def look(spent_usd):
        return await observe_logs(
            registry, [path], root=tmp_path / "runs", coach="counting", settings=words, spent_usd=spent_usd
        )

    first = await look(0.5)
    assert first.verdicts.counts.failed > 0 and first.verdicts.usd <= 0.75
    Counting.price, before = 0.0, len(Counting.asked)
    later = await look(0.0)
    assert later.verdicts.counts.failed == 0 and len(Counting.asked) == 8 and before < 8


async def test_a_play_that_goes_on_is_judged_anew_and_only_when_it_rests_where_logs_are_followed(registry, tmp_path):
    path = tmp_path / "chat.json"
    said = chat(1)["messages"]

    async def look(**options):
        return await observe_logs(registry, [path], root=tmp_path / "runs", coach="counting", **options)

    path.write_text(json.dumps(said[:2]))
    waiting = await look(waits=True)
    assert (waiting.imported.trajectories, waiting.verdicts.plays, waiting.sums.judged) == (1, 0, 0)
    path.write_text(json.dumps(said))
    assert ((await look(waits=True)).imported.went_on, Counting.asked) == (1, [])
    rested = await look(waits=True)
    assert (rested.verdicts.plays, rested.sums.judged, len(Counting.asked)) == (1, 1, 2)
    path.write_text(json.dumps([*said, {"role": "assistant", "name": "critic", "content": "No."}]))
    assert (await look()).verdicts.counts.verdicts == 3
    with RunReader(rested.folder) as reader:
        assert len(list(reader.verdicts)) == 3


async def test_an_unknown_coach_and_a_bad_log_write_nothing(registry, tmp_path):
    path = tmp_path / "team.jsonl"
    with pytest.raises(InputError, match="is missing"):
        await observe_logs(registry, [path], root=tmp_path / "runs")
    add(path, chat(1))
    with pytest.raises(InputError, match="nobodys"):
        await observe_logs(registry, [path], root=tmp_path / "runs", coach="nobodys")
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_kills_at_any_moment_lose_and_double_nothing(registry, tmp_path):
    """Each batch is observed by a process that is killed, each a little later than the one before."""
    path, runs, killed = tmp_path / "team.jsonl", tmp_path / "runs", 0

    def look():
        asyncio.run(observe_logs(registry, [path], root=runs, coach="counting"))

    for batch in range(8):
        add(path, *(chat(100 * batch + number) for number in range(40)))
        process = multiprocessing.get_context("fork").Process(target=look)
        process.start()
        time.sleep(0.04 * batch)
        process.kill()
        process.join()
        killed += process.exitcode == -signal.SIGKILL
    assert killed
    look()
    (run,) = (path for path in runs.iterdir() if not path.name.startswith("."))
    with RunReader(run) as reader:
        tasks = [row.task for row in reader.trajectories]
        assert len(tasks) == len(set(tasks)) == 320
        judged = [(row.trajectory, row.position) for row in reader.verdicts]
        assert len(judged) == len(set(judged)) == 640
        assert reader.summary.agents["writer"].turns == 1.0
    assert len((run / "tasks.jsonl").read_text().splitlines()) == 320


def test_the_command_says_what_is_new_and_a_run_that_is_written_is_left_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mappa.look.cli.observe_log.load_registry", lambda: load_plugins(only=("look", "evidence")))
    add(tmp_path / "team.jsonl", chat(1, wrong=True), chat(2))
    assert main(["observe", "team.jsonl"]) == 0
    shown = capsys.readouterr().out
    assert "2 rollouts of 2 tasks from messages" in shown and "evidence: 4 verdicts on 2 new plays" in shown
    assert "“1 * 8 = 9”, it says; the left side is 8." in shown
    monkeypatch.setattr("mappa.look.observe_logs.NEWEST", 1)
    assert main(["observe", "team.jsonl"]) == 0
    shown = capsys.readouterr().out
    assert "nothing new was written" in shown and "the newest 1 plays" in shown
    assert "2 plays of which no outcome is known; to blame: writer 1; cannot tell in 1 of 2" in shown
    assert main(["observe", "team.jsonl", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["sums"]["plays"], told["imported"]["trajectories"], told["newest"]["rollouts"]) == (2, 0, 1)
    (run,) = (tmp_path / "runs").iterdir()
    with RunFolder.open(run):
        assert main(["observe", "team.jsonl"]) == 2
    assert "is in use by process" in capsys.readouterr().err
    # A folder that holds one run stands for it.
    assert main(["observe", "runs"]) == 0 and main(["observe", "runs", "--coach", "evidence"]) == 2
    assert main(["observe", "team.jsonl", "--split", "train"]) == 2
    assert "a LOG has no recipe" in capsys.readouterr().err


def test_a_log_that_is_followed_is_shown_as_it_grows_until_ctrl_c(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mappa.look.cli.observe_log.load_registry", lambda: load_plugins(only=("look", "evidence")))
    path, polls = tmp_path / "team.jsonl", []

    def sleep(seconds):
        polls.append(seconds)
        if len(polls) in (2, 6):
            add(path, chat(len(polls), wrong=True))
        if len(polls) == 9:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr("mappa.look.cli.observe_log.time.sleep", sleep)
    assert main(["observe", "team.jsonl", "--follow"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(" of")[0] for line in lines] == ["1 play", "1 play", "2 plays", "2 plays"]
    assert lines[0].endswith("1 are not judged yet") and "to blame: writer 2" in lines[3]
