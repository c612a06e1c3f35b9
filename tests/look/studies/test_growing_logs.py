"""A log that grows is read once: lines, files, traces and conversations that come, go on, are moved or written anew."""

import gzip
import json

import pytest

from mappa.look.importing import LogMapping, import_logs
from mappa.look.importing.import_run import name_run
from mappa.runs import RunFolder, RunReader
from mappa.testing import load_plugins
from mappa_core import InputError, RunError, Verdict
from mappa_core.records import Label

REGISTRY = load_plugins(only=("look",))


def chat(number, *texts, **more):
    said = [{"role": "assistant", "name": "writer", "content": text} for text in texts or ("4",)]
    return {"messages": [{"role": "user", "content": f"Question {number}?"}, *said], **more}


def lines(*rows):
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def span(trace, identity, text, parent=None, seconds=0):
    said = [{"role": "assistant", "parts": [{"type": "text", "content": text}]}]
    asked = [{"role": "user", "parts": [{"type": "text", "content": f"Do {trace}."}]}]
    return {
        "name": "chat",
        "context": {"trace_id": trace, "span_id": identity},
        "parent_id": parent,
        "start_time": f"2026-01-01T00:00:{seconds:02d}.000000Z",
        "end_time": f"2026-01-01T00:00:{seconds + 1:02d}.000000Z",
        "status": {"status_code": "UNSET"},
        "attributes": {
            "gen_ai.operation.name": "chat",
            "gen_ai.agent.name": identity,
            "gen_ai.input.messages": json.dumps(asked),
            "gen_ai.output.messages": json.dumps(said),
        },
    }


class Log:
    """A folder of logs, and the run that is made of it."""

    def __init__(self, folder):
        self.folder = folder
        self.folder.mkdir()
        self.run = folder.parent / "runs" / name_run([folder])

    def read(self, **options):
        return import_logs(REGISTRY, [self.folder], LogMapping(), root=self.run.parent, **options)

    def plays(self):
        with RunReader(self.run) as reader:
            return [reader.trajectory(row.id) for row in reader.trajectories]

    def said(self):
        return [[step.reply.content for step in play.steps] for play in self.plays()]


@pytest.fixture
def log(tmp_path):
    return Log(tmp_path / "logs")


def test_lines_that_follow_are_read_and_the_others_are_not(log):
    path = log.folder / "team.jsonl"
    path.write_text(lines(chat(1), chat(2)))
    first = log.read()
    assert (first.is_new, first.trajectories, first.folder) == (True, 2, log.run)
    assert log.read().trajectories == 0
    with path.open("a") as file:
        file.write(lines(chat(1), chat(3, "a", "b")))
    more = log.read()
    assert (more.is_new, more.trajectories, more.went_on, more.agents) == (False, 2, 0, {"writer": 3})
    # An equal line is another play of the same task, whether it came now or before.
    assert [(play.sample, play.task.prompt) for play in log.plays()] == [
        (0, "Question 1?"), (0, "Question 2?"), (1, "Question 1?"), (0, "Question 3?"),
    ]  # fmt: skip
    with RunReader(log.run) as reader:
        assert reader.summary.agents["writer"].turns == 5 / 4
    tasks = [json.loads(line)["prompt"] for line in (log.run / "tasks.jsonl").read_text().splitlines()]
    assert tasks == ["Question 1?", "Question 2?", "Question 3?"]


def test_only_what_was_added_is_parsed(log, monkeypatch):
    from mappa.look.importing import growing_files

    path = log.folder / "team.jsonl"
    path.write_text(lines(*map(chat, range(50))))
    log.read()
    parsed = []
    parse_line = growing_files.parse_line
    monkeypatch.setattr(growing_files, "parse_line", lambda *given: parsed.append(given[1]) or parse_line(*given))
    with path.open("a") as file:
        file.write(lines(chat(50)))
    log.read()
    log.read()
    assert parsed == [f"{path}, line 51"]


def test_a_line_that_is_being_written_is_read_when_it_is_whole(log):
    path, whole = log.folder / "team.jsonl", lines(chat(1), chat(2, "größer"))
    encoded = whole.encode()
    cut = encoded.index("ö".encode()) + 1  # within a character
    path.write_bytes(encoded[:cut])
    first = log.read()
    assert first.trajectories == 1
    (said,) = first.unfinished
    assert "line 2" in said and "still being written" in said
    assert log.read().trajectories == 0
    path.write_bytes(encoded)
    assert (log.read().trajectories, log.said()) == (1, [["4"], ["größer"]])
    with path.open("a") as file:
        file.write(json.dumps(chat(3)))  # whole, though no line ends it
    assert log.read().trajectories == 1
    with path.open("a") as file:
        file.write("\n" + lines(chat(4)))
    assert (log.read().trajectories, len(log.plays())) == (1, 4)


def test_a_bad_line_is_refused_and_nothing_of_its_batch_is_there(log):
    path = log.folder / "team.jsonl"
    path.write_text(lines(chat(1)))
    log.read()
    path.write_text(lines(chat(1), chat(2)) + "no JSON\n")
    with pytest.raises(InputError, match=r"team\.jsonl, line 3: it is no JSON"):
        log.read()
    assert len(log.plays()) == 1
    path.write_text(lines(chat(1), chat(2), chat(3)))
    assert (log.read().trajectories, len(log.plays())) == (2, 3)


def test_new_files_are_read_and_those_that_are_gone_stay_in_the_run(log):
    (log.folder / "1.json").write_text(json.dumps(chat(1)))
    (log.folder / "2.json").write_text(json.dumps(chat(2))[:-9])
    first = log.read()
    assert first.trajectories == 1 and "2.json" in first.unfinished[0]
    (log.folder / "1.json").unlink()
    (log.folder / "2.json").write_text(json.dumps(chat(2)))
    (log.folder / "3.json").write_text(json.dumps([chat(3), chat(4)]))
    assert (log.read().trajectories, len(log.plays())) == (3, 4)
    # Written anew as a whole, with one more in front of what is known.
    (log.folder / "3.json").write_text(json.dumps([chat(5), chat(3), chat(4)]))
    assert (log.read().trajectories, len(log.plays())) == (1, 5)


def test_runs_that_lie_in_the_same_folder_are_no_logs(tmp_path):
    (tmp_path / "team.jsonl").write_text(lines(chat(1)))
    for _ in range(2):
        made = import_logs(REGISTRY, [tmp_path], LogMapping(), root=tmp_path / "runs")
    assert made.trajectories == 0
    with RunReader(made.folder) as reader:
        assert len(list(reader.trajectories)) == 1


def test_a_file_that_is_renamed_as_logs_are_rotated_is_known(log):
    path = log.folder / "team.jsonl"
    path.write_text(lines(chat(1), chat(2)))
    log.read()
    path.rename(log.folder / "team.1.jsonl")
    path.write_text(lines(chat(3)))
    with (log.folder / "team.1.jsonl").open("a") as file:
        file.write(lines(chat(4)))
    assert log.read().trajectories == 2
    # Copied and cut, and the copy packed.
    packed = log.folder / "team.2.jsonl.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    path.write_text(lines(chat(5)))
    assert (log.read().trajectories, log.read().trajectories) == (1, 0)
    assert [play.task.prompt for play in log.plays()] == [f"Question {number}?" for number in (1, 2, 4, 3, 5)]


def test_a_log_that_begins_anew_adds_to_what_was_there(log):
    path = log.folder / "team.jsonl"
    path.write_text(lines(chat(1), chat(2)))
    log.read()
    path.write_text(lines(chat(3)))
    assert (log.read().trajectories, len(log.plays())) == (1, 3)


def test_a_conversation_that_goes_on_takes_the_place_of_what_was_read_of_it(log):
    path = log.folder / "chat.json"
    path.write_text(json.dumps(chat(1, "a")))
    (log.folder / "other.json").write_text(json.dumps(chat(2, "z")))
    log.read()
    (play, other) = log.plays()
    with RunFolder.open(log.run) as folder:
        folder.store.record_verdict(Verdict(status="scored", score=1.0, step=play.steps[0].id, phase="again", id="v"))
        folder.store.record_label(
            Label(kind="guilt", trajectory=play.id, agent="writer", step=play.steps[0].id, labeller="ann")
        )
    path.write_text(json.dumps(chat(1, "a", "b")))
    more = log.read()
    assert (more.trajectories, more.went_on) == (1, 1)
    before, after = log.plays()
    assert before.id == other.id and after.id == play.id  # The newest is the last.
    assert log.said() == [["z"], ["a", "b"]] and after.verdicts == ()
    with RunReader(log.run) as reader:
        assert [label.labeller for label in reader.labels(play.id)] == ["ann"]
        assert reader.summary.agents["writer"].turns == 3 / 2


def test_spans_of_a_trace_that_come_later_join_it(log):
    path = log.folder / "spans.jsonl"
    path.write_text(lines(span("t1", "a", "one", parent="r"), span("t2", "c", "other", parent="r")))
    assert log.read().trajectories == 2
    with path.open("a") as file:
        file.write(lines(span("t1", "b", "two", parent="r", seconds=2)))
    more = log.read()
    assert (more.trajectories, more.went_on) == (1, 1)
    assert sorted(log.said()) == [["one", "two"], ["other"]]
    # In another file.
    (log.folder / "spans2.jsonl").write_text(
        lines(span("t2", "d", "last", parent="r", seconds=3), span("t3", "e", "new"))
    )
    more = log.read()
    assert (more.trajectories, more.went_on) == (2, 1)
    assert sorted(log.said()) == [["new"], ["one", "two"], ["other", "last"]]
    assert log.read().trajectories == 0


def test_messages_of_one_conversation_that_are_lines_go_on(log):
    path, said = log.folder / "chat.jsonl", chat(1, "a", "b")["messages"]
    path.write_text(lines(*said[:2]))
    log.read()
    path.write_text(lines(*said))
    assert (log.read().went_on, log.said()) == (1, [["a", "b"]])


def test_tasks_of_one_name_and_another_text_are_kept_apart_in_a_later_batch_too(tmp_path):
    path, mapping = tmp_path / "log.jsonl", LogMapping(task_id="task")

    def read(*rows):
        with path.open("a") as file:
            file.write(lines(*rows))
        return import_logs(REGISTRY, [path], mapping, root=tmp_path / "runs", name="run")

    read(chat(1, task="t"))
    later = read(chat(2, task="t"), chat(1, task="t"))
    assert "task t: its text is another than in" in later.problems[0]
    assert read(chat(2, task="t")).problems == ()
    with RunReader(tmp_path / "runs" / "run") as reader:
        ids = [row.id.split("/")[1:] for row in reader.trajectories]
    assert ids[0] == ["t", "000"] and ids[2] == ["t", "001"]
    assert ids[1][0].startswith("t-") and ids[3] == [ids[1][0], "001"]


def test_new_agents_join_the_team_and_a_run_keeps_its_options(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text(lines(chat(1, ok=True)))

    def read(mapping, **options):
        return import_logs(REGISTRY, [path], mapping, root=tmp_path / "runs", name="run", **options)

    read(LogMapping(outcomes={"correct": "ok"}, agents={"writer": "Writes."}))
    other = chat(2, ok=False)
    other["messages"].append({"role": "assistant", "name": "critic", "content": "No."})
    with path.open("a") as file:
        file.write(lines(other))
    assert read(LogMapping()).measured == 1
    with RunReader(tmp_path / "runs" / "run") as reader:
        assert {name: role.brief for name, role in reader.team.agents.items()} == {
            "writer": "Writes.", "critic": "an agent of a team that was recorded elsewhere",
        }  # fmt: skip
    with pytest.raises(RunError, match=r"with other options, which it keeps: .*task_id \(None\)"):
        read(LogMapping(task_id="n"))
    with pytest.raises(RunError, match="other options, which it keeps: format"):
        read(LogMapping(), file_format="langchain")


def test_the_run_of_logs_is_named_by_where_they_lie(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "logs").mkdir()
    for number in range(2):
        (tmp_path / "logs" / f"{number}.jsonl").write_text(lines(chat(number)))
    whole = name_run([tmp_path / "logs"])
    assert whole.startswith("logs-") and whole == name_run([tmp_path.relative_to(tmp_path) / "logs"])
    assert whole == name_run([tmp_path / "logs" / "*.jsonl"])
    assert whole == name_run(sorted((tmp_path / "logs").iterdir()))
    assert name_run([tmp_path / "logs" / "0.jsonl"]).startswith("0-")
    assert (
        import_logs(REGISTRY, [tmp_path / "logs" / "*.jsonl"], LogMapping(), root=tmp_path / "runs").trajectories == 2
    )
