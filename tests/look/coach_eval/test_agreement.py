"""How far people agree, held against figures by hand, and what that means for a coach's certificate."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mappa.cli import main
from mappa.look.coach_eval.agreement import LabelledPlay, measure_agreement
from mappa.runs import RunFolder, RunReader
from mappa_core.records import Label

BLAME = Path(__file__).parents[4] / "shared" / "data" / "blame"
needs_data = pytest.mark.skipif(not BLAME.is_dir(), reason="the public sets of labelled failures are not here")


def play(name, **answers):
    """A play of four actions; each labeller gives an agent and a step, of which either may be None."""
    labels = [
        Label(
            kind="guilt",
            trajectory=name,
            agent=agent,
            step=None if step is None else f"{name}/{step}",
            labeller=labeller,
        )
        for labeller, (agent, step) in answers.items()
    ]
    return LabelledPlay(labels=labels, positions={f"{name}/{step}": step for step in range(4)}, cluster=name)


def test_shares_and_kappa_of_two_are_those_by_hand():
    plays = [
        play("p1", ann=("a", 0), ben=("a", 0)),
        play("p2", ann=("a", 1), ben=("a", 2)),
        play("p3", ann=("b", 3), ben=("b", None)),
        play("p4", ann=("b", 0), ben=("a", 3)),
        play("p5", ann=("b", 0)),
    ]
    found = measure_agreement(plays)
    assert (found.labellers, found.plays, found.agents, found.steps) == (("ann", "ben"), 4, 4, 3)
    assert found.same_agent.mean == 3 / 4
    assert found.same_step.mean == 1 / 3 and found.near_step.mean == 2 / 3
    # Observed 3/4; by chance 2/4 * 3/4 for a and 2/4 * 1/4 for b.
    assert found.kappa == pytest.approx((3 / 4 - 1 / 2) / (1 - 1 / 2))


def test_of_three_labellers_every_pair_counts_and_kappa_is_their_mean():
    plays = [
        play("p1", ann=("a", 0), ben=("a", 0), cat=("b", 1)),
        play("p2", ann=("b", 1), ben=("b", 1), cat=("a", 1)),
    ]
    found = measure_agreement(plays)
    assert found.same_agent.mean == pytest.approx(1 / 3) and found.same_step.mean == pytest.approx((1 / 3 + 1) / 2)
    # Ann and Ben agree wholly (1); each disagrees wholly with Cat, where chance would bring a half (-1).
    assert found.kappa == pytest.approx((1 - 1 - 1) / 3)


def test_without_a_second_labeller_there_is_nothing_to_compare():
    assert measure_agreement([play("p1", ann=("a", 0)), play("p2", ben=("a", 0))]) is None


def test_people_who_always_say_the_same_have_no_kappa():
    found = measure_agreement([play("p1", ann=("a", 0), ben=("a", 0)), play("p2", ann=("a", 1), ben=("a", 1))])
    assert found.same_agent.mean == 1.0 and found.kappa is None


def test_one_who_always_says_the_same_tells_nothing_of_agreement_beyond_chance():
    plays = [play(f"p{n}", ann=("a", 0), ben=("a" if n else "b", 0)) for n in range(20)]
    found = measure_agreement(plays)
    assert found.same_agent.mean == 0.95 and found.kappa is None
    # Of three, the pairs with one who varies alone are left out.
    plays = [play(f"p{n}", ann=("a", 0), ben=("ab"[n % 2], 0), cat=("ab"[n % 2], 0)) for n in range(4)]
    assert measure_agreement(plays).kappa == 1.0


# --- in a certificate and in what is observed -----------------------------------------------------------------------


@pytest.fixture
def labelled_twice(tmp_path):
    """A run of two plays; in the first Ben disagrees with the log about agent and step."""
    messages = [{"role": "user", "content": "2+2?"}]
    messages += [{"role": "assistant", "name": name, "content": name} for name in "ab"]
    rows = [{"id": f"q{n}", "messages": messages, "who": "a", "at": 1} for n in (1, 2)]
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = [
        "--task-id",
        "id",
        "--guilty-agent",
        "who",
        "--guilty-step",
        "at",
        "--root",
        str(tmp_path),
        "--name",
        "run",
    ]
    assert main(["import", str(log), *words]) == 0
    with RunReader(tmp_path / "run") as reader:
        first, second = [row.id for row in reader.trajectories]
    with RunFolder.open(tmp_path / "run") as folder:
        for name, agent, step in ((first, "b", 1), (second, "a", 0)):
            label = Label(kind="guilt", trajectory=name, agent=agent, step=f"{name}/{step:03d}", labeller="ben")
            folder.store.record_label(label)
    verdicts = tmp_path / "verdicts.jsonl"
    verdicts.write_text("".join(json.dumps({"run": name, "agent": "a", "step": 1}) + "\n" for name in (first, second)))
    return tmp_path / "run", verdicts


def figures_of(words, capsys):
    capsys.readouterr()
    assert main(["coach", "eval", *words, "--json"]) == 0
    (evaluation,) = json.loads(capsys.readouterr().out)["evaluations"]
    means = {one["task"]: one["of_all"]["mean"] for one in evaluation["coaches"][0]["figures"]}
    return means, evaluation["agreement"]


def test_an_answer_of_any_labeller_is_right_and_one_of_all_is_told_beside_it(labelled_twice, capsys):
    run, verdicts = labelled_twice
    words = ["--run", str(run), "--coach", "recorded", f"recorded.path={verdicts}"]
    means, agreement = figures_of(words, capsys)
    assert means["guilty agent"] == means["decisive step"] == 1.0
    assert means["guilty agent, by all labellers"] == means["decisive step, by all labellers"] == 0.5
    assert (agreement["same_agent"]["mean"], agreement["same_step"]["mean"]) == (0.5, 0.5)
    means, agreement = figures_of([*words, "--labeller", "ben"], capsys)
    assert means["guilty agent"] == means["decisive step"] == 0.5
    assert agreement is None and "guilty agent, by all labellers" not in means


def test_observe_says_how_far_people_agree(labelled_twice, capsys):
    run, _ = labelled_twice
    capsys.readouterr()
    assert main(["observe", str(run)]) == 0
    assert "people, ben labelled 2 runs beside each other: the same agent in 50.0" in capsys.readouterr().out


@needs_data
def test_the_second_labels_of_who_and_when_are_its_ceiling(capsys):
    words = ["--on", "who-and-when", "--data", str(BLAME / "who_and_when.jsonl.gz"), "--coach", "imported"]
    labels = ["--labels", str(BLAME / "who_and_when_second_labels.jsonl")]
    main(["coach", "eval", *words, *labels])
    shown = capsys.readouterr().out
    assert "the same agent in 61.4 [46.6, 74.3] % of 44 (kappa 0.37)" in shown
    assert "the same step in 36.4 [23.8, 51.1] % of 44, within one step 47.7" in shown
