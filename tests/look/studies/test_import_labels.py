"""Labels travel with a run: what comes in, what is left out and why, and who never sees them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from mappa.cli import main
from mappa.look.coach_eval.labelled_runs import read_benchmark, read_labelled_runs
from mappa.look.importing import LogMapping, import_logs
from mappa.look.judge import judge_run
from mappa.look.view.web.app import create_app
from mappa.look.view.web.run_folders import RunFolders
from mappa.runs import RunFolder, RunReader
from mappa.sessions import restore_trusted
from mappa.testing import load_plugins
from mappa_core import Coach, ConfigError, InputError, Offer, Verdict, hookimpl
from mappa_core.records import Label

BLAME = Path(__file__).parents[4] / "shared" / "data" / "blame"
needs_data = pytest.mark.skipif(not BLAME.is_dir(), reason="the public sets of labelled failures are not here")
CANARY = "canary-4711"

GENERATED = {
    "source": "made/1.json",
    "question": "2+2?",
    "question_ID": "q1",
    "ground_truth": "4",
    "is_correct": False,
    "system_prompt": {"Solver": "You solve."},
    "history": [
        {"role": "assistant", "name": "Solver", "content": "print(2+3)"},
        {"role": "user", "name": "Terminal", "content": "5"},
        {"role": "assistant", "name": "Checker", "content": "5"},
    ],
    "mistake_agent": "Solver",
    "mistake_step": "0",
    "mistake_reason": "Adds 3.",
    "level": "1",
}
CRAFTED = {
    "source": "hand/1.json",
    "question": "2+2?",
    "question_ID": "q2",
    "is_corrected": False,
    "history": [
        {"role": "human", "content": "2+2?"},
        {"role": "Orchestrator (thought)", "content": "Ask."},
        {"role": "Orchestrator (-> Solver)", "content": "Solve it."},
        {"role": "Solver", "content": "5"},
    ],
    "mistake_agent": "Solver",
    "mistake_step": 2,
}
PROCESS = {
    "query_index": 3,
    "sample_index": 1,
    "total_index": 16,
    "question": "2+2?",
    "ground_truth": {"target": ["4", "four"]},
    "messages": [
        {"role": "user", "content": "Do: 2+2?"},
        {"role": "assistant", "content": "3"},
        {"role": "user", "content": "No."},
        {"role": "assistant", "content": "4"},
    ],
    "step_labels": {"1": -1, "3": 1},
    "final_label": 1,
}
ALONE = {"dataset": "hotpotqa", "query": 3, "sample": 1, "steps": {"1": -1, "3": 1}, "final": 1}


def write(path, *lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def imported(tmp_path, *lines, name="run", **mapped):
    path = write(tmp_path / f"{name}.jsonl", *lines)
    return import_logs(load_plugins(only=("look",)), [path], LogMapping(**mapped), root=tmp_path, name=name)


def read(made):
    with RunReader(made.folder) as reader:
        return [reader.trajectory(row.id) for row in reader.trajectories], reader.labels()


# --- what comes in ----------------------------------------------------------------------------------------------------


def test_who_and_when_is_found_and_every_message_of_an_agent_is_an_action(tmp_path):
    made = imported(tmp_path, GENERATED, CRAFTED)
    assert made.format == "who-and-when"
    assert (made.counts.entries, made.counts.actions) == (7, 6)
    assert made.counts.left_out == {"messages of human, a person": 1}
    assert made.counts.entries == made.counts.actions + sum(made.counts.left_out.values())
    (one, two), labels = read(made)
    assert [step.agent for step in one.steps] == ["Solver", "Terminal", "Checker"]
    assert [step.agent for step in two.steps] == ["Orchestrator", "Orchestrator", "Solver"]
    assert [step.strata for step in two.steps] == [{"remark": "thought"}, {"remark": "-> Solver"}, {}]
    assert one.steps[0].messages[0].content == "You solve." and one.steps[2].messages[-1].content == "5"
    assert (one.task.stratum, one.task.reference, one.outcome, two.task.stratum) == (
        "made",
        "4",
        {"correct": 0.0},
        "hand",
    )
    first, second = labels
    assert (first.agent, first.step, first.reason) == ("Solver", one.steps[0].id, "Adds 3.")
    # The step is the number of a message; the first one of this log is no action.
    assert (second.agent, second.step) == ("Solver", two.steps[1].id)
    assert made.labels.odd == {"the guilty agent is another one than acted in the guilty step": 1}
    assert made.problems == (f"{tmp_path / 'run.jsonl'}, line 1: level: not read",)


def test_agent_process_bench_is_read_with_its_texts_or_from_labels_alone(tmp_path):
    made = imported(tmp_path, PROCESS)
    (one,), labels = read(made)
    assert made.format == "agent-process-bench" and made.labels.values == {"-1": 1, "+1": 1} and made.labels.wholes == 1
    assert (one.task.id, one.task.stratum, one.task.reference) == ("hotpotqa-3", "hotpotqa", "4; four")
    assert [(label.step, label.value) for label in labels] == [
        (one.steps[0].id, -1.0), (one.steps[1].id, 1.0), (None, 1.0)
    ]  # fmt: skip
    alone = imported(tmp_path, ALONE, name="alone")
    (two,), same = read(alone)
    assert alone.counts.without_text == 1 and [label.value for label in same] == [label.value for label in labels]
    assert two.task.meta == {"run": "hotpotqa/3/1", "messages": [1, 3]}


def test_labels_and_texts_of_one_run_are_joined_and_must_agree(tmp_path):
    texts, labels = (
        write(tmp_path / "texts.jsonl", PROCESS),
        write(tmp_path / "labels.jsonl", ALONE, {**ALONE, "sample": 2}),
    )
    runs = read_benchmark("agent-process-bench", [texts, labels]).runs
    assert [(run.has_text, run.task.meta["run"]) for run in runs] == [(True, "hotpotqa/3/1"), (False, "hotpotqa/3/2")]
    other = write(tmp_path / "other.jsonl", {**ALONE, "steps": {"1": 1, "3": 1}})
    with pytest.raises(InputError, match=r"other.jsonl, line 1: hotpotqa/3/1 is labelled otherwise in .*texts.jsonl"):
        read_benchmark("agent-process-bench", [texts, other])


def test_a_set_that_is_not_among_these_is_labelled_by_the_keys_that_options_name(tmp_path):
    line = {
        "chat": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "name": "a", "content": "5"}],
        "verdict": {"who": "a", "where": 1},
        "marks": [-1],
    }
    made = imported(
        tmp_path, line, messages="chat", guilty_agent="verdict.who", guilty_step="verdict.where", step_values="marks"
    )
    (one,), labels = read(made)
    assert [(label.kind, label.agent, label.step, label.value) for label in labels] == [
        ("guilt", "a", one.steps[0].id, None), ("quality", None, one.steps[0].id, -1.0)
    ]  # fmt: skip


def test_files_of_one_object_each_are_read_as_a_folder_in_natural_order(tmp_path):
    folder = tmp_path / "made"
    folder.mkdir()
    for number in (10, 2):
        row = {key: value for key, value in GENERATED.items() if key not in ("source", "question_ID")}
        (folder / f"{number}.json").write_text(json.dumps({**row, "question": f"{number}?"}, indent=1))
    runs = read_benchmark("who-and-when", [folder]).runs
    assert [(run.task.meta["run"], run.stratum) for run in runs] == [("made/2.json", "made"), ("made/10.json", "made")]


# --- what does not ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"mistake_step": "0"}, "mistake_step: message 0 is not an action of an agent"),
        ({"mistake_step": "the third"}, "mistake_step: 'the third' is not the number of a message"),
        ({"mistake_step": -1}, "mistake_step: -1 is not the number of a message"),
        ({"mistake_agent": 7}, "mistake_agent: not a name: 7"),
    ],
)
def test_a_label_that_names_no_step_is_left_out_and_said_with_line_and_key(tmp_path, changed, says):
    made = imported(tmp_path, GENERATED, {**CRAFTED, **changed})
    assert f"{tmp_path / 'run.jsonl'}, line 2: {says}; this label is left out" in made.problems
    (_, two), labels = read(made)
    rest = [label for label in labels if label.trajectory == two.id]
    assert all(label.step is None or label.agent == "Orchestrator" for label in rest)


def test_values_that_are_none_are_left_out(tmp_path):
    made = imported(tmp_path, {**PROCESS, "step_labels": {"1": 3, "2": 1, "3": None}, "final_label": "good"})
    (_,), labels = read(made)
    assert labels == []
    said = " ".join(made.problems)
    for one in (
        "step_labels.1: 3 is none of 1, 0, -1",
        "step_labels.2: message 2 is not an action",
        "final_label: 'good'",
    ):
        assert one in said


def test_a_run_that_is_labelled_twice_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"line 2: made/1.json is labelled already in .*line 1: leave one of them out"):
        imported(tmp_path, GENERATED, {**GENERATED, "mistake_step": 1})
    with pytest.raises(InputError, match=r"line 2: hotpotqa/3/1 is labelled already"):
        imported(tmp_path, ALONE, ALONE)


def test_half_empty_files_are_refused_or_counted(tmp_path):
    unlabelled = {**CRAFTED, "mistake_step": None, "mistake_agent": ""}
    made = imported(tmp_path, GENERATED, unlabelled)
    assert (made.trajectories, made.labels.agents, made.labels.steps) == (2, 1, 1)
    with pytest.raises(InputError, match=r"line 2: history: no list of messages"):
        imported(tmp_path, GENERATED, {**CRAFTED, "history": []}, name="empty")
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(json.dumps(GENERATED).encode())[:-20])
    with pytest.raises(InputError, match=r"cut\.jsonl\.gz cannot be read"):
        read_benchmark("who-and-when", [tmp_path / "cut.jsonl.gz"])


async def test_runs_without_labels_and_several_labellers_are_said(tmp_path):
    registry = load_plugins(only=("look",))
    made = imported(tmp_path, GENERATED, {**CRAFTED, "mistake_step": None, "mistake_agent": None})
    found = await read_labelled_runs(registry, [made.folder])
    assert (len(found.runs), found.left_out) == (1, {"without a label": 1})
    (one, _), _ = read(made)
    with RunFolder.open(made.folder) as folder:
        folder.store.record_label(Label(kind="guilt", trajectory=one.id, agent="Checker", labeller="second"))
    (run,) = (await read_labelled_runs(registry, [made.folder])).runs
    assert run.is_labelled_again and run.guilt.agents == {"Solver", "Checker"}
    with pytest.raises(ConfigError, match=r"--labeller third: .* has labels of people, second"):
        await read_labelled_runs(registry, [made.folder], labeller="third")
    (run,) = (await read_labelled_runs(registry, [made.folder], labeller="second")).runs
    assert run.guilt.agents == {"Checker"} and run.guilt.positions == frozenset()


# --- who never sees them ----------------------------------------------------------------------------------------------


class Listener(Coach):
    """Remembers everything that it is shown or given to learn from."""

    seen: list[str] = []  # noqa: RUF012 - filled by the run under test

    def __init__(self, options) -> None: ...

    async def score(self, scene):
        self.seen.append(repr(scene))
        return Verdict.scored(5.0, "-")

    def learn(self, trajectories):
        self.seen.append(repr(trajectories))


class Plugin:
    @hookimpl
    def mappa_coaches(self):
        yield Offer("listener", Listener)


@pytest.mark.parametrize("hindsight", [False, True])
async def test_no_coach_sees_a_label(tmp_path, hindsight):
    registry = load_plugins(only=("look",), modules={"listener": Plugin()})
    line = {**GENERATED, "mistake_reason": CANARY}
    made = imported(tmp_path, line)
    Listener.seen.clear()
    await judge_run(
        restore_trusted(registry, made.folder / "config.yaml", ("coach.use=listener",)), registry, made.folder
    )
    found = await read_labelled_runs(registry, [made.folder], hindsight=hindsight)
    shown = read_benchmark("who-and-when", [tmp_path / "run.jsonl"], hindsight=hindsight)
    assert found.runs[0].labels[0].reason == CANARY == shown.runs[0].labels[0].reason
    told = [*Listener.seen, repr(found.runs[0].scenes), repr(shown.runs[0].scenes)]
    assert len(Listener.seen) == 3 and not any(CANARY in one or "mistake" in one for one in told)


async def test_the_truth_is_shown_where_it_is_asked_for_and_nowhere_else(tmp_path):
    registry = load_plugins(only=("look",))
    made = imported(tmp_path, {**GENERATED, "ground_truth": CANARY})
    for truth in (False, True):
        (run,) = (await read_labelled_runs(registry, [made.folder], truth=truth)).runs
        (same,) = read_benchmark("who-and-when", [tmp_path / "run.jsonl"], truth=truth).runs
        assert [scene.task.reference for scene in run.scenes] == [CANARY if truth else None] * 3
        assert [scene.task.reference for scene in same.scenes] == [CANARY if truth else None] * 3


# --- on the command line ----------------------------------------------------------------------------------------------


def test_an_imported_run_certifies_a_coach_with_the_same_command(tmp_path, monkeypatch, invoke):
    monkeypatch.setenv("COLUMNS", "120")
    made = imported(tmp_path, GENERATED, CRAFTED)
    verdicts = write(
        tmp_path / "verdicts.jsonl",
        {"run": "made/1.json", "agent": "Solver", "step": 0},
        {"run": "hand/1.json", "agent": "Orchestrator", "step": 1},
    )
    words = ["coach", "eval", "--coach", "recorded", f"recorded.path={verdicts}", "--truth", "both"]
    told = invoke([*words, "--run", str(made.folder)])
    assert told.exit_code == 0, told.output
    assert "2 labelled runs of 2 questions, 6 actions" in told.output
    assert "The truth was not shown to the coach" in told.output and "The truth was shown to the coach" in told.output
    asked = [*words, "--json", "--on", "who-and-when", "--data", str(tmp_path / "run.jsonl")]
    document = json.loads(invoke(asked).output)
    hidden, shown = document["evaluations"]
    assert (hidden["truth"], shown["truth"]) == (False, True)
    figures = {(one["task"], one["stratum"]): one for one in hidden["coaches"][0]["figures"]}
    assert figures["guilty agent", "all"]["of_all"]["mean"] == 0.5
    assert figures["decisive step", "all"]["of_all"]["mean"] == 0.5
    assert figures["within one step", "all"]["of_all"]["mean"] == 1.0
    assert [one["name"] for one in hidden["coaches"][0]["published"]] == ["agent accuracy", "step accuracy"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--on", "who-and-when"], "--on names a public set and --data its files: give both"),
        (["--on", "who-and-when", "--data", "nowhere.jsonl"], "nowhere.jsonl is missing"),
        (["--run", "a", "--on", "who-and-when", "--data", "b"], "name what is labelled"),
        (["--file", "x.jsonl", "--truth", "shown"], "--truth and --labeller are for labelled runs"),
    ],
)
def test_what_cannot_be_certified_is_exit_code_2(words, says, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["coach", "eval", "--coach", "imported", *words]) == 2
    assert says in capsys.readouterr().err


# --- the public sets --------------------------------------------------------------------------------------------------


@needs_data
def test_both_public_sets_come_in_whole():
    when = read_benchmark("who-and-when", [BLAME / "who_and_when.jsonl.gz"]).runs
    assert len(when) == 184 and all(run.guilt.agents and run.guilt.positions for run in when)
    assert sum(len(run.scenes) for run in when) == 1099 + 2993 - 58
    process = read_benchmark("agent-process-bench", [BLAME / "agent_process_bench_hotpotqa.jsonl.gz"]).runs
    assert len(process) == 250 and all(len(run.qualities) == len(run.scenes) and run.has_text for run in process)
    labels = read_benchmark("agent-process-bench", [BLAME / "agent_process_bench_labels.jsonl"]).runs
    assert (len(labels), sum(len(run.qualities) for run in labels)) == (1000, 8509)


@pytest.fixture
def judged(tmp_path):
    """Two labelled runs and a coach that blames the right agent in the first and nobody in the second."""
    made = imported(tmp_path, GENERATED, CRAFTED)
    verdicts = write(tmp_path / "verdicts.jsonl", {"run": "made/1.json", "agent": "Solver", "step": 0})
    words = ["judge", str(made.folder), "--coach", "recorded", f"coach.options.path={verdicts}", "--quiet"]
    assert main(words) == 0
    return made.folder


def test_a_trace_shows_labels_beside_the_verdicts(judged, capsys):
    capsys.readouterr()
    assert main(["runs", "trace", str(judged), "train-000000/q1/000"]) == 0
    shown = capsys.readouterr().out
    verdict, label = shown.index("to blame: Solver"), shown.index("label of people: Solver is to blame, in this step")
    assert verdict < label < shown.index("Adds 3.") < shown.index("Checker, turn 1")
    assert main(["runs", "trace", str(judged), "train-000000/q1/000", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [one["agent"] for one in document["labels"]] == ["Solver"] and len(document["steps"]) == 3


def test_observe_says_how_often_verdicts_meet_the_labels(judged, capsys):
    capsys.readouterr()
    assert main(["observe", str(judged)]) == 0
    shown = capsys.readouterr().out
    assert "people say who is to blame in 2 rollouts; verdicts blame that agent in 1 of them" in shown
    assert "label of people: Solver is to blame, in this step: Adds 3." in shown
    assert main(["observe", str(judged), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["labelled"], document["labels_met"]) == (2, 1)
    guilty = {name: one["labelled_guilty"] for name, one in document["agents"].items()}
    assert guilty == {"Solver": 2, "Terminal": 0, "Checker": 0, "Orchestrator": 0}


def test_the_page_of_a_trajectory_shows_labels_and_that_no_coach_sees_them(judged):
    client = TestClient(create_app(RunFolders([judged]), token="t"), base_url="http://127.0.0.1")
    page = client.get("/runs/run/trajectory?token=t&id=train-000000/q1/000").text
    assert "label of people: Solver is to blame, in this step" in page
    assert "Adds 3." in page and "no coach sees it" in page


def test_labels_of_values_and_of_the_whole_are_shown_where_they_belong(tmp_path, capsys):
    made = imported(tmp_path, PROCESS)
    with RunReader(made.folder) as reader:
        (row,) = reader.trajectories
    assert main(["runs", "trace", str(made.folder), row.id]) == 0
    shown = capsys.readouterr().out
    places = [shown.index(f"label of people: {one}") for one in ("wrong", "right", "the whole is right")]
    assert places == sorted(places) and shown.index("outcome") < places[-1]
